#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/completions.grpc.pb.h"
#include "frontend/completion_session.h"
#include "frontend/session_slot.h"

namespace baton {

// The call of StreamComplete: a bounded queue of chunks between a session and the client, one write
// in flight.
//
// Owns itself from construction to OnDone, as gRPC wants it.
class StreamCompleteReactor final : public grpc::ServerWriteReactor<v1::CompleteChunk>,
                                    public CompletionSink {
 public:
  // `context` lives until OnDone, by gRPC's rules. More than `max_pending` chunks unread end the
  // stream.
  StreamCompleteReactor(grpc::CallbackServerContext& context, std::size_t max_pending);

  // Begins the session, or ends the call with why there is none. Call once, on any thread; the call
  // may end meanwhile, and this object with it.
  void Begin(absl::StatusOr<std::shared_ptr<CompletionSession>> session, Generator& generator);

  bool OnChunk(v1::CompleteChunk chunk) override;
  void OnEnd(const absl::Status& status, bool cut) override;
  bool Hold() override;
  void CutHeld(const absl::Status& status) override;

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // True, once, when everything that must come before Finish has come.
  bool TakeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishIf(bool now);

  grpc::CallbackServerContext& context_;
  const std::size_t max_pending_;
  SessionSlot session_;

  // Never held while calling gRPC or the session.
  absl::Mutex mutex_;
  std::deque<v1::CompleteChunk> pending_
      ABSL_GUARDED_BY(mutex_);  // the first one is the write in flight, if any
  bool write_in_flight_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) =
      false;  // a write has failed: the call is over, nothing more can be sent
  int holds_ ABSL_GUARDED_BY(mutex_) = 0;  // calls of CutHeld to wait for
  bool finish_taken_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
