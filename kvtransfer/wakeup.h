#pragma once

#include <atomic>

#include "absl/status/statusor.h"
#include "common/file.h"

namespace baton {

// Wakes one thread that sleeps in poll(). Any number of Notify calls before the next Consume cost
// one system call.
//
// Thread-safe: Notify from any thread, the rest by the sleeper.
class Wakeup {
 public:
  // RESOURCE_EXHAUSTED when the process is out of descriptors.
  static absl::StatusOr<Wakeup> Create();

  Wakeup(Wakeup&& other) noexcept : fd_(std::move(other.fd_)), pending_(other.pending_.load()) {}

  // Readable while there is something to consume.
  int fd() const { return fd_.get(); }
  void Notify();
  // True when notified since the last call. What a notifier did before Notify is then visible.
  bool Consume();

 private:
  explicit Wakeup(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
  std::atomic<bool> pending_ = false;
};

}  // namespace baton
