#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/file.h"

namespace baton {

// The path of a program that this build made: they lie beside the test.
std::string ProgramPath(const std::string& name);

// How a process ended: an exit code, or the signal that ended it.
struct ProcessEnd {
  std::optional<int> code;
  std::optional<int> signal;
};

// One child process, killed and reaped at the latest by the destructor. It ends with the thread
// that started it, so that a test that crashes leaves nothing behind.
//
// Not thread-safe.
class ChildProcess {
 public:
  // Standard input is /dev/null; both outputs are kept.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::string& program, const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The next line of standard output, without its end. UNAVAILABLE when the output ends first,
  // DEADLINE_EXCEEDED after `patience`; both carry the end of standard error.
  absl::StatusOr<std::string> ReadLine(Duration patience);
  // Everything more on standard output, once the process has ended.
  std::string ReadRest();

  // To a process that has not been reaped; afterwards nothing.
  void Signal(int signal);
  // SIGKILL, and waits until the process is gone.
  void Kill();
  // nullopt when it still runs after `patience`.
  std::optional<ProcessEnd> WaitForEnd(Duration patience);

  // What it has written to standard error so far.
  std::string ErrorOutput() const;
  pid_t pid() const { return pid_; }
  // Its open file descriptors now; 0 when it has ended.
  std::size_t open_files() const;

 private:
  ChildProcess(pid_t pid, UniqueFd handle, UniqueFd output, UniqueFd errors);

  const pid_t pid_;
  const UniqueFd handle_;  // a pidfd: readable when the process has ended
  const UniqueFd output_;  // read end of a pipe
  const UniqueFd errors_;  // memory that standard error goes to
  std::string buffered_;
  std::optional<ProcessEnd> end_;  // set once reaped
};

}  // namespace baton
