#pragma once

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "common/file.h"

namespace baton {

// Turns SIGTERM and SIGINT into bytes of a pipe, so that a thread can wait for them in ordinary
// code; ignores SIGPIPE, so that a closed standard output ends nothing.
//
// Signals belong to the process: one object at a time. The dispositions from before come back with
// its end. Not thread-safe: used by the main thread.
class ShutdownSignals {
 public:
  static absl::StatusOr<std::unique_ptr<ShutdownSignals>> Install();
  ~ShutdownSignals();
  ShutdownSignals(const ShutdownSignals&) = delete;
  ShutdownSignals& operator=(const ShutdownSignals&) = delete;

  // True when a signal has come that was not reported before; false after `timeout`. A negative
  // timeout waits for ever.
  bool Wait(std::chrono::milliseconds timeout);

 private:
  struct Saved;
  ShutdownSignals(UniqueFd read_end, UniqueFd write_end);

  const UniqueFd read_end_;
  const UniqueFd write_end_;
  const std::unique_ptr<Saved> saved_;
};

}  // namespace baton
