#include "bench/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton {
namespace {

// Clock ticks that each core has been idle since the machine started.
std::map<int, std::int64_t> IdleTicks() {
  std::map<int, std::int64_t> ticks;
  std::ifstream stat("/proc/stat");
  for (std::string line; std::getline(stat, line);) {
    std::istringstream fields(line);
    std::string name;
    std::int64_t user = 0;
    std::int64_t nice = 0;
    std::int64_t system = 0;
    std::int64_t idle = 0;
    int core = 0;
    fields >> name >> user >> nice >> system >> idle;
    if (name.starts_with("cpu") && absl::SimpleAtoi(name.substr(3), &core)) {
      ticks[core] = idle;
    }
  }
  return ticks;
}

// Of the calling thread, ascending.
std::vector<int> ThreadCores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) {
      cores.push_back(core);
    }
  }
  return cores;
}

// `thread` is a thread's id; 0: the calling one. Sets errno when it fails.
bool PinThread(int thread, const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    CPU_SET(core, &set);
  }
  return sched_setaffinity(thread, sizeof(set), &set) == 0;
}

}  // namespace

const std::vector<int>& PermittedCores() {
  static const std::vector<int> cores = ThreadCores();
  return cores;
}

std::vector<int> IdlestCores(int count) {
  std::vector<int> cores = PermittedCores();
  if (static_cast<int>(cores.size()) <= count) {
    return cores;
  }
  std::map<int, std::int64_t> idle = IdleTicks();
  // The system only counts: how idle a core is shows in what its count gains over some time.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  for (const auto& [core, ticks] : IdleTicks()) {
    idle[core] = ticks - idle[core];
  }
  std::stable_sort(cores.begin(), cores.end(), [&](int a, int b) { return idle[a] > idle[b]; });
  cores.resize(static_cast<std::size_t>(count));
  return cores;
}

absl::Status PinProcess(const std::vector<int>& cores) {
  PermittedCores();  // before the first narrowing
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    int id = 0;
    const bool parsed = absl::SimpleAtoi(task.path().filename().string(), &id);
    // A thread may have ended meanwhile.
    if (parsed && !PinThread(id, cores) && errno != ESRCH) {
      return absl::InternalError(absl::StrCat("pin thread ", id, ": ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

ThreadPin::ThreadPin(const std::vector<int>& cores) : before_(ThreadCores()) {
  PermittedCores();  // before the first narrowing
  BATON_CHECK(PinThread(0, cores));
}

ThreadPin::~ThreadPin() {
  PinThread(0, before_);
}

}  // namespace baton
