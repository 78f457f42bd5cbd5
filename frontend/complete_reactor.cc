#include "frontend/complete_reactor.h"

#include <utility>

#include "frontend/call_reactor.h"
#include "proto/status_conversion.h"

namespace baton {

CompleteReactor::CompleteReactor(const grpc::CallbackServerContext& context,
                                 v1::CompleteResponse& response)
    : context_(context), response_(response) {}

void CompleteReactor::Begin(absl::StatusOr<std::shared_ptr<CompletionSession>> session,
                            Generator& generator) {
  if (!session.ok()) {
    Finish(ToGrpcStatus(session.status()));
    return;
  }
  session_.Fill(*std::move(session), generator);
}

bool CompleteReactor::OnChunk(v1::CompleteChunk chunk) {
  if (response_.choices().empty()) {
    response_.set_id(chunk.id());
    response_.set_model(chunk.model());
    response_.add_choices();
  }
  v1::Choice& choice = *response_.mutable_choices(0);
  const v1::Choice& increment = chunk.choice();
  choice.mutable_text()->append(increment.text());
  choice.mutable_token_ids()->MergeFrom(increment.token_ids());
  choice.set_finish_reason(increment.finish_reason());
  choice.set_stop_match(increment.stop_match());
  if (chunk.has_usage()) {
    *response_.mutable_usage() = std::move(*chunk.mutable_usage());
    *response_.mutable_timeline() = std::move(*chunk.mutable_timeline());
  }
  return true;
}

void CompleteReactor::OnEnd(const absl::Status& status, bool /*cut*/) {
  Finish(ToGrpcStatus(status));
}

void CompleteReactor::OnCancel() {
  session_.Cancel(CancellationCause(context_));
}

void CompleteReactor::OnDone() {
  session_.Detach();
  delete this;
}

}  // namespace baton
