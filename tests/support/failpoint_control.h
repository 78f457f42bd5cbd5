#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"

namespace baton {

// The test's side of the failpoints of servers that it starts with folder() as their failpoint
// folder (what the files mean: failpoint_actions.cc). Whichever of them meets an armed failpoint
// first takes it.
//
// Not thread-safe.
class FailpointControl {
 public:
  std::string folder() const { return folder_.path().string(); }

  // `action`: "pause 1", "kill 3", "error 1", "delay 1 500", "slow 0 5".
  void Arm(const std::string& name, const std::string& action) {
    for (const char* const suffix : {"", ".hit", ".release"}) {
      std::filesystem::remove(PathOf(name, suffix));
    }
    // Complete at once: a server may look at any moment.
    std::ofstream(PathOf(name, ".new")) << action << '\n';
    std::filesystem::rename(PathOf(name, ".new"), PathOf(name, ""));
  }
  void Disarm(const std::string& name) {
    std::filesystem::remove(PathOf(name, ""));
    Release(name);
  }
  bool WaitForHit(const std::string& name, std::chrono::milliseconds patience) const {
    return WaitUntil([&] { return WasHit(name); }, patience);
  }
  bool WasHit(const std::string& name) const {
    return std::filesystem::exists(PathOf(name, ".hit"));
  }
  // Ends the pause.
  void Release(const std::string& name) { std::ofstream(PathOf(name, ".release")) << '\n'; }

 private:
  std::filesystem::path PathOf(const std::string& name, const char* suffix) const {
    return folder_.path() / (name + suffix);
  }

  TemporaryFolder folder_;
};

}  // namespace baton
