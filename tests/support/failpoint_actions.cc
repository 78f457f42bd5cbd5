// What failpoints do in the test builds of the servers (the other side: failpoint_control.h).
//
// A test arms the failpoint NAME by the file NAME in the folder that BATON_FAILPOINT_DIR names:
//
//   pause N    the Nth hit from now on (1: the next) waits until the file NAME.release appears
//   kill N     the Nth hit ends the process by SIGKILL
//   error N    the Nth hit fails with INTERNAL
//   delay N M  the Nth hit takes M milliseconds
//   fail 0     every hit fails with INTERNAL, until the file goes
//   slow 0 M   every hit takes M milliseconds, until the file goes
//
// A hit that acts, but for `fail` and `slow`, removes the file and leaves NAME.hit. No environment
// variable, no failpoints.

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/failpoint.h"

namespace baton {
namespace {

constexpr int kLongestPauseMs = 30'000;

class FileFailpoints final : public FailpointHandler {
 public:
  explicit FileFailpoints(std::string folder) : folder_(std::move(folder)) {}

  absl::Status OnHit(const char* name) override {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::string action;
    int wait_ms = 0;
    {
      absl::MutexLock lock(&mutex_);
      std::ifstream file(path);
      int number = 0;
      if (!(file >> action >> number)) {
        hits_.erase(path);
        return absl::OkStatus();
      }
      if (action == "fail") {
        return absl::InternalError(absl::StrCat("failpoint ", path));
      }
      file >> wait_ms;
      if (action != "slow") {
        if (++hits_[path] < number) {
          return absl::OkStatus();
        }
        hits_.erase(path);
        std::rename(path.c_str(), absl::StrCat(path, ".hit").c_str());
      }
    }
    return Act(action, path, wait_ms);
  }

 private:
  static absl::Status Act(const std::string& action, const std::string& path, int wait_ms) {
    if (action == "kill") {
      kill(getpid(), SIGKILL);
    } else if (action == "error") {
      return absl::InternalError(absl::StrCat("failpoint ", path));
    } else if (action == "delay" || action == "slow") {
      poll(nullptr, 0, wait_ms);
    } else {
      const std::string release = absl::StrCat(path, ".release");
      for (int ms = 0; ms < kLongestPauseMs && access(release.c_str(), F_OK) != 0; ++ms) {
        poll(nullptr, 0, 1);
      }
    }
    return absl::OkStatus();
  }

  const std::string folder_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, int> hits_ ABSL_GUARDED_BY(mutex_);
};

const bool installed = [] {
  if (const char* const folder = std::getenv("BATON_FAILPOINT_DIR")) {
    failpoint_handler.store(new FileFailpoints(folder), std::memory_order_release);
  }
  return true;
}();

}  // namespace
}  // namespace baton
