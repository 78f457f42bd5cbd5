#pragma once

#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.pb.h"

namespace baton {

// The router's half of a stream of reports: notices go out in order, one write at a time. `Reactor`
// is gRPC's of either direction.
//
// Thread-safe.
template <typename Reactor>
class NoticeSender {
 public:
  // `reactor` must live until Close, and take no further write after it.
  explicit NoticeSender(Reactor& reactor) : reactor_(reactor) {}

  // Nothing when the peer has left too much unread (a notice is a hint that comes again) or after
  // Close.
  void Send(const v1::RouterNotice& notice) {
    constexpr std::size_t kMostWaiting = 16;
    absl::MutexLock lock(&mutex_);
    if (!closed_ && waiting_.size() < kMostWaiting) {
      waiting_.push_back(notice);
      Advance();
    }
  }

  void OnWriteDone(bool ok) {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    closed_ = closed_ || !ok;
    Advance();
  }

  // No write begins any more.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

 private:
  // Under the lock, so that a write has begun or never does when Close returns.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (closed_ || writing_ || waiting_.empty()) {
      return;
    }
    writing_ = true;
    current_ = std::move(waiting_.front());
    waiting_.pop_front();
    reactor_.StartWrite(&current_);
  }

  Reactor& reactor_;
  absl::Mutex mutex_;
  std::deque<v1::RouterNotice> waiting_ ABSL_GUARDED_BY(mutex_);
  v1::RouterNotice current_;  // owned by the write under way
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton
