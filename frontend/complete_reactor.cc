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
  const v1::Choice& increment = chunk.choice();
  const int index = static_cast<int>(increment.index());
  response_.set_id(chunk.id());
  response_.set_model(chunk.model());
  while (response_.choices_size() <= index) {
    const int next = response_.choices_size();
    response_.add_choices()->set_index(static_cast<std::uint32_t>(next));
  }
  v1::Choice& choice = *response_.mutable_choices(index);
  choice.mutable_text()->append(increment.text());
  choice.mutable_token_ids()->MergeFrom(increment.token_ids());
  if (increment.has_logprobs()) {
    choice.mutable_logprobs()->MergeFrom(increment.logprobs());
  }
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
