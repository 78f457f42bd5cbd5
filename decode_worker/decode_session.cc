#include "decode_worker/decode_session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/failpoint.h"
#include "decode_worker/choice_seed.h"
#include "proto/status_conversion.h"
#include "worker/token_conversion.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kRetryWhenFull(200);
constexpr std::size_t kMostChoices = 16;

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

// What the engine says of one choice.
class DecodeSession::ChoiceSink final : public TokenSink {
 public:
  ChoiceSink(std::shared_ptr<DecodeSession> session, std::size_t choice)
      : session_(std::move(session)), choice_(choice) {}
  void OnPromptLogprobs(std::vector<SelectedToken> tokens) override {
    session_->TakePromptLogprobs(tokens);
  }
  void OnToken(const SelectedToken& token) override { session_->TakeToken(choice_, token); }
  void OnEnd(const SequenceEnd& end) override { session_->EndChoice(choice_, end); }

 private:
  const std::shared_ptr<DecodeSession> session_;  // kept alive by its sequences
  const std::size_t choice_;
};

DecodeSession::DecodeSession(Owner owner,
                             v1::RouteReason reason,
                             std::shared_ptr<GenerationObserver> observer)
    : owner_(std::move(owner)), observer_(std::move(observer)) {
  result_.reason = reason;
  result_.finished.set_decode_worker(owner_.address);
}

void DecodeSession::Begin(DecodeJob job) {
  const std::size_t choices = job.choices;
  absl::StatusOr<SequenceRequest> request = MakeSequenceRequest(job.sequence);
  if (absl::Status zone = owner_.core.CheckZone(job.sequence.zone()); request.ok() && !zone.ok()) {
    request = std::move(zone);
  }
  if (request.ok() && (choices == 0 || choices > kMostChoices)) {
    request = absl::InvalidArgumentError("choices: is not from 1 to 16");
  }
  MakeChoices(job, request.ok() ? choices : 1);
  if (!request.ok()) {
    EndChoice(0, {.status = request.status()});
    return;
  }
  request->request_id = job.request_id;
  request->deadline = job.deadline;
  std::optional<SequenceId> leader;
  for (std::size_t i = 0; i < choices; ++i) {
    const absl::StatusOr<SequenceId> id =
        i == 0 ? SubmitLeader(*request, std::move(job)) : SubmitFork(*request, i, *leader);
    if (!id.ok()) {
      EndUnsubmitted(i, id.status());
      return;
    }
    leader = leader.value_or(*id);
  }
}

void DecodeSession::MakeChoices(const DecodeJob& job, std::size_t count) {
  absl::MutexLock lock(&mutex_);
  span_ = OpenSpan(owner_.core.spans(), "decode.request", job.traceparent);
  span_.Add("gen_ai.request.id", job.request_id);
  span_.Add("gen_ai.usage.prompt_tokens", std::int64_t{job.sequence.prompt_size()});
  observer_->OnProgress(result_);
  wants_logprobs_ = job.sequence.has_logprobs();
  wants_prompt_logprobs_ = job.sequence.prompt_logprobs();
  choices_.resize(count);
  open_ = count;
  for (Choice& choice : choices_) {
    choice.cancel = cancelled_;
    if (!job.stop.empty()) {
      choice.text = std::make_unique<TextStream>(owner_.core.checkpoint().tokenizer(), job.stop,
                                                 job.sequence.min_tokens());
    }
  }
}

void DecodeSession::Cancel() {
  CancelWith(absl::CancelledError("the request was cancelled"));
}

void DecodeSession::CancelWith(const absl::Status& why) {
  std::size_t choices = 0;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = why;
    choices = choices_.size();
  }
  for (std::size_t i = 0; i < choices; ++i) {
    CancelChoice(i, why);
  }
}

void DecodeSession::GiveUpUnlessBegun(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (observer_ == nullptr || tokens_ > 0) {
      return;
    }
    EndSpan(why);
    std::exchange(observer_, nullptr)->OnError(why);
  }
  CancelWith(why);
}

absl::StatusOr<SequenceId> DecodeSession::SubmitLeader(SequenceRequest request, DecodeJob job) {
  if (!job.prefill.empty()) {
    request.kind = SequenceKind::kImport;
    handoff_ = owner_.make_handoff({.request_id = job.request_id,
                                    .sequence = std::move(job.sequence),
                                    .shares_prompt = job.choices > 1,
                                    .candidates = std::move(job.prefill),
                                    .forced = job.forced,
                                    .colocate_below_tokens = job.colocate_below_tokens,
                                    .deadline = job.deadline,
                                    .traceparent = TraceParent()},
                                   {.on_change =
                                        [self = weak_from_this()](const HandoffReport& report) {
                                          if (const auto session = self.lock()) {
                                            session->Report(report);
                                          }
                                        },
                                    .on_first_token =
                                        [self = weak_from_this()](const SelectedToken& token) {
                                          if (const auto session = self.lock()) {
                                            session->TellFirstToken(token);
                                          }
                                        }});
    request.hooks = handoff_;
  }
  absl::StatusOr<SequenceId> id = Submit(0, std::move(request));
  if (id.ok() && handoff_ != nullptr) {
    handoff_->SetSequence(*id);
  }
  return id;
}

absl::StatusOr<SequenceId> DecodeSession::SubmitFork(SequenceRequest request,
                                                     std::size_t choice,
                                                     SequenceId leader) {
  request.fork_of = leader;
  request.sampling.seed = ChoiceSeed(request.sampling.seed, static_cast<std::uint32_t>(choice));
  request.prompt_logprobs = false;  // the leader's are everybody's
  return Submit(choice, std::move(request));
}

absl::StatusOr<SequenceId> DecodeSession::Submit(std::size_t choice, SequenceRequest request) {
  request.sink = std::make_shared<ChoiceSink>(shared_from_this(), choice);
  absl::StatusOr<SequenceId> id = owner_.core.engine().Submit(std::move(request));
  if (!id.ok()) {
    return absl::IsResourceExhausted(id.status())
               ? WithReason(WithRetryAfter(id.status(), kRetryWhenFull), "QUEUE_FULL")
               : id.status();
  }
  std::optional<absl::Status> cancel;
  {
    absl::MutexLock lock(&mutex_);
    choices_[choice].sequence = *id;
    cancel = choices_[choice].cancel;
  }
  if (cancel.has_value()) {
    owner_.core.engine().Cancel(*id, *cancel);
  }
  return id;
}

// The engine takes no more: all choices from `first` on end without having begun.
void DecodeSession::EndUnsubmitted(std::size_t first, const absl::Status& why) {
  std::size_t choices = 0;
  {
    absl::MutexLock lock(&mutex_);
    choices = choices_.size();
  }
  for (std::size_t i = first; i < choices; ++i) {
    EndChoice(i, {.status = why});
  }
}

void DecodeSession::CancelChoice(std::size_t choice, const absl::Status& why) {
  std::optional<SequenceId> sequence;
  {
    absl::MutexLock lock(&mutex_);
    if (!choices_[choice].cancel.has_value()) {
      choices_[choice].cancel = why;
    }
    sequence = choices_[choice].sequence;
  }
  if (sequence.has_value()) {
    owner_.core.engine().Cancel(*sequence, why);
  }
}

void DecodeSession::TakePromptLogprobs(const std::vector<SelectedToken>& tokens) {
  absl::MutexLock lock(&mutex_);
  if (observer_ != nullptr) {
    observer_->OnPromptLogprobs(ToProto(tokens));
  }
}

void DecodeSession::TakeToken(std::size_t index, const SelectedToken& token) {
  HitFailpoint("decode.streaming").IgnoreError();
  bool over = false;
  bool differs = false;
  {
    absl::MutexLock lock(&mutex_);
    Choice& choice = choices_[index];
    if (observer_ == nullptr) {
      return;
    }
    const std::optional<TokenId> told = std::exchange(choice.told, std::nullopt);
    differs = told.has_value() && *told != token.token;
    // The others may not have the leader's blocks by its first token: it stays for one more.
    const bool spared = index == 0 && !choice.begun && choices_.size() > 1;
    if (!choice.stopped() && !told.has_value()) {
      Emit(choice, static_cast<std::uint32_t>(index), token);
    }
    choice.begun = true;
    over = choice.stopped() && !spared;
  }
  if (differs) {
    CancelWith(absl::DataLossError("the engine goes on from another token than was sent"));
  } else if (over) {
    CancelChoice(index, absl::CancelledError("the text has met a stop string"));
  }
}

void DecodeSession::TellFirstToken(const SelectedToken& token) {
  absl::MutexLock lock(&mutex_);
  // The prompt's log probabilities come before it, from the engine.
  if (observer_ != nullptr && !wants_prompt_logprobs_) {
    choices_[0].told = token.token;
    Emit(choices_[0], 0, token);
  }
}

void DecodeSession::Emit(Choice& choice, std::uint32_t index, const SelectedToken& token) {
  const int vocabulary = owner_.core.checkpoint().tokenizer().vocabulary();
  if (choice.text != nullptr && token.token.value() < static_cast<std::uint32_t>(vocabulary)) {
    choice.text->Append(token.token);
  }
  ++tokens_;
  GeneratedToken generated{.id = token.token, .choice = index};
  if (wants_logprobs_) {
    generated.logprob = ToProto(token);
  }
  observer_->OnToken(std::move(generated));
}

void DecodeSession::EndChoice(std::size_t index, const SequenceEnd& end) {
  HitFailpoint("decode.finishing").IgnoreError();
  bool failed = false;
  bool all = false;
  {
    absl::MutexLock lock(&mutex_);
    --open_;
    all = open_ == 0;
    if (index == 0) {
      FillTimes(end);
    }
    const bool stopped = choices_[index].stopped();
    const v1::FinishReason reason = stopped ? v1::FINISH_REASON_STOP : ToProto(end.reason);
    failed = observer_ != nullptr && !stopped && !end.status.ok();
    if (failed) {
      EndSpan(end.status);
      std::exchange(observer_, nullptr)->OnError(end.status);
    } else if (observer_ != nullptr && !all) {
      observer_->OnChoiceEnd(static_cast<std::uint32_t>(index), reason);
    } else if (observer_ != nullptr) {
      result_.finished.set_finish_reason(reason);
      EndSpan(absl::OkStatus());
      std::exchange(observer_, nullptr)->OnFinished(result_);
    }
  }
  if (failed) {
    CancelWith(end.status);
  }
  if (index == 0 && handoff_ != nullptr) {
    handoff_->Abandon();
  }
  if (all) {
    owner_.on_gone();
  }
}

void DecodeSession::Report(const HandoffReport& report) {
  absl::MutexLock lock(&mutex_);
  report_ = report;
  v1::GenerateEvent::Finished& finished = result_.finished;
  finished.set_split(report.split);
  finished.set_prefill_failed(report.prefill_failed);
  finished.set_prefix_cached(report.prefix_cached);
  finished.set_prefill_worker(report.prefill_worker);
  finished.set_transport(report.split ? report.transport : "");
  *finished.mutable_queue() = ToProtoDuration(report.queue);
  *finished.mutable_prefill() = ToProtoDuration(report.prefill);
  *finished.mutable_transfer() = ToProtoDuration(report.transfer);
  if (observer_ != nullptr) {
    observer_->OnProgress(result_);
  }
}

std::string DecodeSession::TraceParent() {
  absl::MutexLock lock(&mutex_);
  return span_.traceparent();
}

void DecodeSession::EndSpan(const absl::Status& status) {
  const v1::GenerateEvent::Finished& finished = result_.finished;
  const auto seconds = [](const google::protobuf::Duration& duration) {
    return std::chrono::duration<double>(FromProtoDuration(duration)).count();
  };
  span_.Add("baton.path", finished.split() ? "PATH_DISAGGREGATED" : "PATH_COLOCATED");
  span_.Add("gen_ai.usage.completion_tokens", tokens_);
  span_.Add("gen_ai.latency.time_in_queue", seconds(finished.queue()));
  span_.Add("gen_ai.latency.time_in_model_prefill", seconds(finished.prefill()));
  span_.End(status);
}

// From the end of the sequence that had the prompt computed.
void DecodeSession::FillTimes(const SequenceEnd& end) {
  v1::GenerateEvent::Finished& finished = result_.finished;
  // What nobody computed: of a split prompt the prefill side computes all that it has not cached.
  finished.set_cached_prompt_tokens(
      finished.split() ? report_.cached_tokens : static_cast<std::uint32_t>(end.cached_tokens));
  // Both queues count; a prefill that failed elsewhere and was done here took what it took here.
  *finished.mutable_queue() = ToProtoDuration(end.queue + report_.queue);
  *finished.mutable_prefill() = ToProtoDuration(finished.split() ? report_.prefill : end.prefill);
  if (end.adopted.has_value() && report_.first_token.has_value()) {
    *finished.mutable_exposed_transfer() =
        ToProtoDuration(std::max(Duration::zero(), Duration(*end.adopted - *report_.first_token)));
  }
}

}  // namespace baton
