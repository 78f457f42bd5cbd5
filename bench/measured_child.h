#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/file.h"

namespace baton {

// What a process has used from its start to its end.
struct ChildUsage {
  double cpu_seconds = 0;  // of all its threads, in user and kernel mode
  double wall_seconds = 0;
};

// How it ended, and what it wrote to standard output.
struct ChildResult {
  std::optional<int> code;         // exit code, or
  std::optional<int> signal;       // the signal that ended it
  bool outlived_patience = false;  // and was killed for it
  std::string output;
  std::string errors;  // the end of standard error
  ChildUsage usage;
};

// One child process, killed and reaped at the latest by the destructor. It ends with the thread
// that started it.
//
// Not thread-safe.
class MeasuredChild {
 public:
  // `command` is a program's path and its arguments. Standard input is /dev/null.
  static absl::StatusOr<std::unique_ptr<MeasuredChild>> Start(
      const std::vector<std::string>& command);
  ~MeasuredChild();
  MeasuredChild(const MeasuredChild&) = delete;
  MeasuredChild& operator=(const MeasuredChild&) = delete;

  // The first line of standard output, without its end. UNAVAILABLE when the output ends before,
  // DEADLINE_EXCEEDED after `patience`; both carry the end of standard error.
  absl::StatusOr<std::string> FirstLine(Duration patience);
  void Signal(int signal);
  // Waits for the end; a process that outlives `patience` is killed. Once.
  ChildResult Wait(Duration patience);

  pid_t pid() const { return pid_; }
  // Processor time that a running one has used so far.
  double CpuSeconds() const;

 private:
  MeasuredChild(pid_t pid, UniqueFd handle, UniqueFd output, UniqueFd errors);

  // Takes what there is to read; false at the end of the output or after `deadline`.
  bool ReadSome(TimePoint deadline);
  std::string ErrorTail() const;

  const pid_t pid_;
  const UniqueFd handle_;  // a pidfd: readable when the process has ended
  const UniqueFd output_;  // read end of a pipe
  const UniqueFd errors_;  // memory that standard error goes to
  const TimePoint started_;
  std::string read_;
  bool reaped_ = false;
};

// Start and Wait. An error when it cannot be started, not when it fails.
absl::StatusOr<ChildResult> RunProgram(const std::vector<std::string>& command, Duration patience);

// From the ready line of one of Baton's servers, "ready decode grpc=host:port kv=...": the address
// of a door.
absl::StatusOr<std::string> ReadyDoor(const std::string& ready_line, const std::string& key);

// "exit code 1: <the end of standard error>"
std::string DescribeEnd(const ChildResult& result);

}  // namespace baton
