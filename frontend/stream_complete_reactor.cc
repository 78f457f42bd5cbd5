#include "frontend/stream_complete_reactor.h"

#include <utility>

#include "frontend/call_reactor.h"
#include "proto/status_conversion.h"

namespace baton {

StreamCompleteReactor::StreamCompleteReactor(grpc::CallbackServerContext& context,
                                             std::size_t max_pending)
    : context_(context), max_pending_(max_pending) {}

void StreamCompleteReactor::Begin(absl::StatusOr<std::shared_ptr<CompletionSession>> session,
                                  Generator& generator) {
  if (!session.ok()) {
    Finish(ToGrpcStatus(session.status()));
    return;
  }
  session_.Fill(*std::move(session), generator);
}

bool StreamCompleteReactor::OnChunk(v1::CompleteChunk chunk) {
  const v1::CompleteChunk* next = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (broken_) {
      return true;  // the client is gone; its cancellation ends the session
    }
    if (pending_.size() >= max_pending_ && !chunk.has_usage()) {
      return false;
    }
    pending_.push_back(std::move(chunk));
    if (!write_in_flight_) {
      write_in_flight_ = true;
      next = &pending_.front();
    }
  }
  if (next != nullptr) {
    StartWrite(next);
  }
  return true;
}

void StreamCompleteReactor::OnWriteDone(bool ok) {
  const v1::CompleteChunk* next = nullptr;
  bool finish = false;
  {
    absl::MutexLock lock(&mutex_);
    pending_.pop_front();
    if (!ok) {
      broken_ = true;
      pending_.clear();
    }
    write_in_flight_ = !pending_.empty();
    if (write_in_flight_) {
      next = &pending_.front();
    } else {
      finish = TakeFinish();
    }
  }
  if (next != nullptr) {
    StartWrite(next);
  }
  FinishIf(finish);
}

void StreamCompleteReactor::OnEnd(const absl::Status& status, bool cut) {
  bool finish = false;
  bool cut_now = false;
  {
    absl::MutexLock lock(&mutex_);
    end_ = status;
    cut_now = cut && write_in_flight_ && !broken_;
    holds_ += cut_now ? 1 : 0;
    finish = TakeFinish();
  }
  FinishIf(finish);
  if (cut_now) {
    CutHeld(status);
  }
}

bool StreamCompleteReactor::Hold() {
  absl::MutexLock lock(&mutex_);
  if (finish_taken_ || broken_) {
    return false;
  }
  ++holds_;
  return true;
}

void StreamCompleteReactor::CutHeld(const absl::Status& status) {
  CutCall(context_, status);
  bool finish = false;
  {
    absl::MutexLock lock(&mutex_);
    --holds_;
    finish = TakeFinish();
  }
  FinishIf(finish);
}

bool StreamCompleteReactor::TakeFinish() {
  if (!end_.has_value() || write_in_flight_ || holds_ > 0 || finish_taken_) {
    return false;
  }
  finish_taken_ = true;
  return true;
}

void StreamCompleteReactor::FinishIf(bool now) {
  if (!now) {
    return;
  }
  grpc::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = ToGrpcStatus(*end_);
  }
  Finish(std::move(status));
}

void StreamCompleteReactor::OnCancel() {
  session_.Cancel(CancellationCause(context_));
}

void StreamCompleteReactor::OnDone() {
  session_.Detach();
  delete this;
}

}  // namespace baton
