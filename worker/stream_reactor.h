#pragma once

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/status_conversion.h"

namespace baton {

// The sending half of one server-streaming call: events go out in order, one write at a time, then
// the status.
//
// Deletes itself when the call is over; until then whoever feeds it holds a Handle, which outlives
// it harmlessly. The number of events is bounded by the request that the call carries.
template <typename Event>
class StreamReactor final : public grpc::ServerWriteReactor<Event> {
 public:
  // Thread-safe; after End, and after the call is over, calls do nothing.
  class Handle {
   public:
    void Send(Event event) {
      With([&event](StreamReactor& reactor) { reactor.Send(std::move(event)); });
    }
    // The last call: status follows the events sent before.
    void End(const absl::Status& status) {
      With([&status](StreamReactor& reactor) { reactor.End(status); });
    }

   private:
    friend class StreamReactor;
    template <typename Action>
    void With(Action action) {
      absl::MutexLock lock(&mutex_);
      if (reactor_ != nullptr) {
        action(*reactor_);
      }
    }

    absl::Mutex mutex_;
    StreamReactor* reactor_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null once the call is over
  };

  StreamReactor() : handle_(std::make_shared<Handle>()) {
    absl::MutexLock lock(&handle_->mutex_);
    handle_->reactor_ = this;
  }

  // Shared: the reactor goes with the call, the feeder with its own work, in either order.
  std::shared_ptr<Handle> handle() const { return handle_; }

  // What to do when the peer cancels or its connection breaks. Set before the reactor is returned
  // to gRPC, or later; a cancellation that has happened by then is reported at once.
  void OnCancelled(std::function<void()> action) {
    bool happened = false;
    {
      absl::MutexLock lock(&mutex_);
      happened = cancelled_;
      on_cancelled_ = action;
    }
    if (happened) {
      action();
    }
  }

 private:
  void Send(Event event) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) {
        return;
      }
      queue_.push_back(std::move(event));
    }
    Advance();
  }

  void End(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) {
        return;
      }
      end_ = status;
    }
    Advance();
  }

  // Starts the next operation unless one is under way. gRPC is called without the lock.
  void Advance() {
    std::optional<absl::Status> finish;
    {
      absl::MutexLock lock(&mutex_);
      if (writing_ || finished_) {
        return;
      }
      if (!queue_.empty() && !cancelled_) {
        writing_ = true;
        current_ = std::move(queue_.front());
        queue_.pop_front();
      } else if (end_.has_value()) {
        finished_ = true;
        finish = *end_;
      } else {
        return;
      }
    }
    if (finish.has_value()) {
      this->Finish(ToGrpcStatus(*finish));
    } else {
      this->StartWrite(&current_);
    }
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      cancelled_ = cancelled_ || !ok;
    }
    Advance();
  }

  void OnCancel() override {
    std::function<void()> action;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      action = on_cancelled_;
    }
    if (action) {
      action();
    }
  }

  void OnDone() override {
    {
      absl::MutexLock lock(&handle_->mutex_);
      handle_->reactor_ = nullptr;
    }
    delete this;
  }

  const std::shared_ptr<Handle> handle_;
  absl::Mutex mutex_;
  std::deque<Event> queue_ ABSL_GUARDED_BY(mutex_);
  Event current_;  // owned by the write under way
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
