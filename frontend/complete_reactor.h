#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "baton/v1/completions.grpc.pb.h"
#include "frontend/completion_session.h"
#include "frontend/session_slot.h"

namespace baton {

// The call of Complete: adds up the chunks of a session to one response, its choices by index.
//
// Owns itself from construction to OnDone, as gRPC wants it.
class CompleteReactor final : public grpc::ServerUnaryReactor, public CompletionSink {
 public:
  // Both live until OnDone, by gRPC's rules.
  CompleteReactor(const grpc::CallbackServerContext& context, v1::CompleteResponse& response);

  // Begins the session, or ends the call with why there is none. Call once, on any thread; the call
  // may end meanwhile, and this object with it.
  void Begin(absl::StatusOr<std::shared_ptr<CompletionSession>> session, Generator& generator);

  bool OnChunk(v1::CompleteChunk chunk) override;
  void OnEnd(const absl::Status& status, bool cut) override;
  bool Hold() override { return false; }  // the end is sent at once, nothing waits for the client
  void CutHeld(const absl::Status&) override {}

 private:
  void OnCancel() override;
  void OnDone() override;

  const grpc::CallbackServerContext& context_;
  v1::CompleteResponse& response_;
  SessionSlot session_;
};

}  // namespace baton
