#include "router/generate_reactor.h"

#include <grpcpp/channel.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

// `status` with more in front of its message, details kept.
absl::Status Annotate(const absl::Status& status,
                      absl::StatusCode code,
                      const std::string& prefix) {
  absl::Status result(code, absl::StrCat(prefix, ": ", std::string(status.message())));
  status.ForEachPayload(
      [&result](absl::string_view url, const absl::Cord& bytes) { result.SetPayload(url, bytes); });
  return result;
}

GeneratedToken TakeToken(v1::GenerateEvent& event) {
  GeneratedToken token{.id = TokenId(event.token()), .choice = event.choice()};
  if (event.has_logprob()) {
    token.logprob = std::move(*event.mutable_logprob());
  }
  return token;
}

}  // namespace

GenerateReactor::GenerateReactor(v1::GenerateRequest request,
                                 Options options,
                                 std::shared_ptr<GenerationObserver> observer)
    : request_(std::move(request)), options_(std::move(options)), observer_(std::move(observer)) {}

void GenerateReactor::Begin(const std::shared_ptr<grpc::Channel>& channel,
                            std::shared_ptr<GenerateReactor> self) {
  self_ = std::move(self);
  stub_ = v1::DecodeWorker::NewStub(channel);
  if (options_.deadline.has_value()) {
    context_.set_deadline(std::chrono::system_clock::now() +
                          (*options_.deadline - Clock::System().Now()));
  }
  stub_->async()->Generate(&context_, &request_, this);
  StartRead(&event_);
  StartCall();
}

void GenerateReactor::Cancel() {
  cancelled_.store(true);
  context_.TryCancel();
}

void GenerateReactor::OnReadDone(bool ok) {
  if (!ok) {
    return;  // OnDone follows
  }
  if (observer_ != nullptr) {
    switch (event_.event_case()) {
      case v1::GenerateEvent::kToken:
        token_seen_ = true;
        observer_->OnToken(TakeToken(event_));
        break;
      case v1::GenerateEvent::kPromptLogprobs:
        observer_->OnPromptLogprobs(std::move(*event_.mutable_prompt_logprobs()));
        break;
      case v1::GenerateEvent::kChoiceEnd:
        observer_->OnChoiceEnd(event_.choice(), event_.choice_end());
        break;
      case v1::GenerateEvent::kProgress:
        observer_->OnProgress(MakeResult(event_.progress()));
        break;
      case v1::GenerateEvent::kFinished:
        observer_->OnFinished(MakeResult(event_.finished()));
        observer_.reset();
        break;
      case v1::GenerateEvent::EVENT_NOT_SET:
        break;
    }
  }
  StartRead(&event_);
}

void GenerateReactor::OnDone(const grpc::Status& status) {
  if (observer_ != nullptr) {
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE && options_.on_unreachable) {
      options_.on_unreachable();
    }
    observer_->OnError(MakeError(status));
    observer_.reset();
  }
  const std::shared_ptr<GenerateReactor> last =
      std::move(self_);  // may be the last one: nothing follows
}

GenerationResult GenerateReactor::MakeResult(const v1::GenerateEvent::Finished& finished) const {
  GenerationResult result{.finished = finished, .reason = options_.reason, .route = options_.route};
  if (finished.decode_worker().empty()) {
    result.finished.set_decode_worker(options_.worker);
  }
  if (finished.prefill_failed()) {
    result.reason = v1::ROUTE_REASON_PREFILL_FAILED;
  } else if (finished.prefix_cached()) {
    result.reason = v1::ROUTE_REASON_PREFIX_CACHED;
  }
  return result;
}

// A stream that breaks off is UNAVAILABLE while the client has seen nothing, and a retry is safe;
// ABORTED after that.
absl::Status GenerateReactor::MakeError(const grpc::Status& status) const {
  const std::string prefix = absl::StrCat("decode worker ", options_.worker);
  const absl::StatusCode broken_off =
      token_seen_ ? absl::StatusCode::kAborted : absl::StatusCode::kUnavailable;
  const absl::Status reported = WithTlsHint(FromGrpcStatus(status), options_.tls);
  switch (reported.code()) {
    case absl::StatusCode::kOk:
      return absl::Status(broken_off, absl::StrCat(prefix, ": stream ended without a result"));
    case absl::StatusCode::kCancelled:
      return cancelled_.load() ? reported : Annotate(reported, broken_off, prefix);
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:
      return Annotate(reported, broken_off, prefix);
    default:
      return Annotate(reported, reported.code(), prefix);
  }
}

}  // namespace baton
