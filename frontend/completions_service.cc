#include "frontend/completions_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/block_hash.h"
#include "common/status_macros.h"
#include "frontend/call_reactor.h"
#include "frontend/complete_reactor.h"
#include "frontend/completion_session.h"
#include "frontend/request_checks.h"
#include "frontend/request_validation.h"
#include "frontend/running_requests.h"
#include "frontend/stream_complete_reactor.h"
#include "frontend/timer_thread.h"
#include "frontend/work_thread.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

// Texts up to this size take some milliseconds to tokenize.
constexpr std::size_t kQuickBytes = 16 << 10;

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context,
                                    const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

CompletionsService::CompletionsService(const Checkpoint& checkpoint,
                                       Generator& generator,
                                       CompletionsOptions options)
    : checkpoint_(checkpoint),
      generator_(generator),
      options_(std::move(options)),
      validator_(std::make_unique<RequestValidator>(
          checkpoint,
          options_.model_name.empty() ? checkpoint.config().name : options_.model_name,
          options_.zones)),
      running_(std::make_shared<RunningRequests>(options_.max_running_requests)),
      timer_(std::make_unique<TimerThread>()),
      long_work_(std::make_unique<WorkThread>(options_.max_long_prompts)) {}

CompletionsService::~CompletionsService() = default;

void CompletionsService::StopIntake() {
  running_->StopIntake();
}

std::size_t CompletionsService::InFlight() const {
  return running_->in_flight();
}

void CompletionsService::CancelRest(const absl::Status& why) {
  for (const std::shared_ptr<CompletionSession>& session : running_->All()) {
    session->Stop(why);
  }
}

std::map<std::string, std::uint64_t> CompletionsService::FinishedRequests() const {
  return running_->outcomes();
}

absl::Status CompletionsService::RunOrPost(std::size_t bytes, std::function<void()> work) {
  constexpr std::chrono::milliseconds kRetryAfter{1000};
  if (bytes <= kQuickBytes) {
    work();
    return absl::OkStatus();
  }
  if (!long_work_->Post(std::move(work)).ok()) {
    return WithReason(
        WithRetryAfter(absl::ResourceExhaustedError("too many long prompts wait to be tokenized"),
                       kRetryAfter),
        "TOO_MANY_REQUESTS");
  }
  return absl::OkStatus();
}

template <typename Reactor>
Reactor* CompletionsService::Launch(Reactor* reactor,
                                    const grpc::CallbackServerContext& context,
                                    const v1::CompleteRequest& request) {
  const TimePoint now = Clock::System().Now();
  const Arrival arrival{.when = now,
                        .deadline = CallDeadline(context, now,
                                                 {.default_time = options_.default_deadline,
                                                  .longest = options_.max_deadline})};
  absl::StatusOr<Caller> caller = IdentifyCaller(context);
  absl::Status status = caller.status();
  if (status.ok()) {
    // The request lives as long as its call.
    status = RunOrPost(request.ByteSizeLong(),
                       [this, reactor, &request, arrival, caller = *std::move(caller)] {
                         reactor->Begin(Admit(request, arrival, caller, *reactor), generator_);
                       });
  }
  if (!status.ok()) {
    running_->CountRefusal(status.code());
    reactor->Begin(status, generator_);
  }
  return reactor;
}

absl::StatusOr<std::shared_ptr<CompletionSession>> CompletionsService::Admit(
    const v1::CompleteRequest& request,
    const Arrival& arrival,
    const Caller& caller,
    CompletionSink& sink) {
  const auto admit = [&]() -> absl::StatusOr<std::shared_ptr<CompletionSession>> {
    RETURN_IF_ERROR(running_->CheckIntake());
    const TimePoint begin = Clock::System().Now();
    if (arrival.deadline <= begin) {
      return absl::DeadlineExceededError("deadline was over before the request could begin");
    }
    ASSIGN_OR_RETURN(ValidatedRequest valid, validator_->Validate(request));
    auto session = std::make_shared<CompletionSession>(
        std::move(valid),
        CompletionSession::Options{.model_name = validator_->model_name(),
                                   .arrival = arrival.when,
                                   .tokenize = Clock::System().Now() - begin,
                                   .deadline = arrival.deadline,
                                   .caller = caller,
                                   .spans = options_.spans,
                                   .span_name = options_.span_name},
        checkpoint_.tokenizer(), sink, *timer_);
    RETURN_IF_ERROR(session->Enter(running_));
    return session;
  };
  absl::StatusOr<std::shared_ptr<CompletionSession>> session = admit();
  if (!session.ok()) {
    running_->CountRefusal(session.status().code());
  }
  return session;
}

grpc::ServerUnaryReactor* CompletionsService::Complete(grpc::CallbackServerContext* context,
                                                       const v1::CompleteRequest* request,
                                                       v1::CompleteResponse* response) {
  return Launch(new CompleteReactor(*context, *response), *context, *request);
}

grpc::ServerWriteReactor<v1::CompleteChunk>* CompletionsService::StreamComplete(
    grpc::CallbackServerContext* context, const v1::CompleteRequest* request) {
  return Launch(new StreamCompleteReactor(*context, options_.max_pending_chunks), *context,
                *request);
}

grpc::ServerUnaryReactor* CompletionsService::Abort(grpc::CallbackServerContext* context,
                                                    const v1::AbortRequest* request,
                                                    google::protobuf::Empty* /*response*/) {
  for (const std::string& id : request->request_ids()) {
    if (const std::shared_ptr<CompletionSession> session = running_->Find(id)) {
      session->Stop(WithReason(absl::CancelledError("request was aborted"), "ABORTED_BY_REQUEST"));
    }
  }
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* CompletionsService::Tokenize(grpc::CallbackServerContext* context,
                                                       const v1::TokenizeRequest* request,
                                                       v1::TokenizeResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status status = RunOrPost(request->text().size(), [this, reactor, request, response] {
    reactor->Finish(ToGrpcStatus(TokenizeNow(*request, *response)));
  });
  if (!status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
  }
  return reactor;
}

absl::Status CompletionsService::TokenizeNow(const v1::TokenizeRequest& request,
                                             v1::TokenizeResponse& response) const {
  RETURN_IF_ERROR(CheckNoUnknownFields(request));
  RETURN_IF_ERROR(validator_->CheckModel(request.model()));
  RETURN_IF_ERROR(CheckUtf8("text", request.text()));
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                   checkpoint_.tokenizer().Encode(request.text(), request.special()));
  response.mutable_ids()->Reserve(static_cast<int>(ids.size()));
  for (const TokenId id : ids) {
    response.add_ids(id.value());
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* CompletionsService::Detokenize(grpc::CallbackServerContext* context,
                                                         const v1::DetokenizeRequest* request,
                                                         v1::DetokenizeResponse* response) {
  return FinishNow(context, DetokenizeNow(*request, *response));
}

absl::Status CompletionsService::DetokenizeNow(const v1::DetokenizeRequest& request,
                                               v1::DetokenizeResponse& response) const {
  const Tokenizer& tokenizer = checkpoint_.tokenizer();
  const auto vocabulary = static_cast<std::uint32_t>(tokenizer.vocabulary());
  RETURN_IF_ERROR(CheckNoUnknownFields(request));
  RETURN_IF_ERROR(validator_->CheckModel(request.model()));
  for (int i = 0; i < request.ids_size(); ++i) {
    if (request.ids(i) >= vocabulary) {
      return FieldError(
          absl::StrCat("ids[", i, "]"),
          absl::StrCat(request.ids(i), " is not below the vocabulary size ", vocabulary));
    }
    const TokenId id(request.ids(i));
    if (!request.skip_special() || !tokenizer.IsControl(id)) {
      response.mutable_text()->append(tokenizer.TokenBytes(id));
    }
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* CompletionsService::ListModels(grpc::CallbackServerContext* context,
                                                         const v1::ListModelsRequest* /*request*/,
                                                         v1::ListModelsResponse* response) {
  v1::Model& model = *response->add_models();
  model.set_name(validator_->model_name());
  model.set_context_tokens(static_cast<std::uint32_t>(checkpoint_.config().context_tokens));
  model.set_vocabulary_size(static_cast<std::uint32_t>(checkpoint_.tokenizer().vocabulary()));
  model.set_block_tokens(kBlockTokens);
  model.set_model_fingerprint(std::string(AsBytes(checkpoint_.fingerprint())));
  model.set_tokenizer_fingerprint(std::string(AsBytes(checkpoint_.tokenizer().fingerprint())));
  return FinishNow(context, absl::OkStatus());
}

}  // namespace baton
