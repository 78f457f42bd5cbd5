#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/file.h"

namespace baton {

// One child process that is spoken to in lines, through its standard input and output; its standard
// error is ours. The end of its input tells it to end; the destructor gives it a second for that,
// kills what is left and reaps it. It ends with the thread that started it.
//
// Not thread-safe.
class LineChild {
 public:
  // `command` is a program's path and its arguments.
  static absl::StatusOr<std::unique_ptr<LineChild>> Start(const std::vector<std::string>& command);
  ~LineChild();
  LineChild(const LineChild&) = delete;
  LineChild& operator=(const LineChild&) = delete;

  // `line` has no end of line. UNAVAILABLE when the child no longer reads.
  absl::Status WriteLine(const std::string& line);
  // The next line, without its end. UNAVAILABLE when the output ends first, DEADLINE_EXCEEDED after
  // `patience`.
  absl::StatusOr<std::string> ReadLine(Duration patience);
  // Closes its input and waits. nullopt when it was ended by a signal or outlived `patience` and
  // was killed. Once.
  std::optional<int> Finish(Duration patience);

 private:
  LineChild(std::string name, pid_t pid, UniqueFd handle, UniqueFd input, UniqueFd output);

  const std::string name_;  // in errors
  const pid_t pid_;
  const UniqueFd handle_;  // a pidfd: readable when the process has ended
  UniqueFd input_;         // write end of a pipe
  const UniqueFd output_;  // read end of a pipe
  std::string read_;       // of the output, not yet returned
  bool reaped_ = false;
};

}  // namespace baton
