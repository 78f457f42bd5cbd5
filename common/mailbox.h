#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton {

// Bounded queue from many producers to the one thread that owns some state.
//
// Push refuses with RESOURCE_EXHAUSTED when `capacity` messages wait, which is the back pressure.
// PushEnding is for messages that end something already admitted (a cancellation, a returned
// lease): their number is bounded by what was admitted, and refusing one would leak. After Close
// both refuse with UNAVAILABLE, what is queued can still be taken, and the consumer learns of it
// from closed().
//
// `wake`, when given, is called after each push without the lock held; for consumers that sleep
// elsewhere.
//
// Thread-safe.
template <typename T>
class Mailbox {
 public:
  explicit Mailbox(std::size_t capacity, std::function<void()> wake = nullptr)
      : capacity_(capacity), wake_(std::move(wake)) {}

  absl::Status Push(T message) { return Add(std::move(message), capacity_); }
  absl::Status PushEnding(T message) {
    return Add(std::move(message), static_cast<std::size_t>(-1));
  }

  // Everything that waits, oldest first; blocks until there is something, the mailbox is closed, or
  // `timeout` is over.
  std::deque<T> PopAll(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &Mailbox::HasNews), timeout);
    return std::exchange(queue_, {});
  }

  void Close() {
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
    }
    if (wake_) {
      wake_();
    }
  }

  bool closed() const {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }

 private:
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !queue_.empty(); }

  absl::Status Add(T message, std::size_t limit) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) {
        return absl::UnavailableError("mailbox is closed");
      }
      if (queue_.size() >= limit) {
        return absl::ResourceExhaustedError("mailbox is full");
      }
      queue_.push_back(std::move(message));
    }
    if (wake_) {
      wake_();
    }
    return absl::OkStatus();
  }

  const std::size_t capacity_;
  const std::function<void()> wake_;
  mutable absl::Mutex mutex_;
  std::deque<T> queue_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton
