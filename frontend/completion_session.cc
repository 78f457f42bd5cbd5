#include "frontend/completion_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "frontend/prompt_echo.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

// A generator's error as a client may see it: never OK and never UNKNOWN.
absl::Status ForClient(absl::Status status) {
  if (status.ok() || status.code() == absl::StatusCode::kUnknown) {
    return absl::InternalError(
        absl::StrCat("generation ended without a reason: ", std::string(status.message())));
  }
  return status;
}

// "colocated/SHORT_PROMPT".
std::string OutcomeName(const v1::Timeline& timeline) {
  constexpr std::string_view kPathPrefix = "PATH_";
  constexpr std::string_view kReasonPrefix = "ROUTE_REASON_";
  return absl::StrCat(
      absl::AsciiStrToLower(v1::Path_Name(timeline.path()).substr(kPathPrefix.size())), "/",
      v1::RouteReason_Name(timeline.reason()).substr(kReasonPrefix.size()));
}

double Milliseconds(const google::protobuf::Duration& duration) {
  return std::chrono::duration<double, std::milli>(FromProtoDuration(duration)).count();
}

double Seconds(const google::protobuf::Duration& duration) {
  return std::chrono::duration<double>(FromProtoDuration(duration)).count();
}

}  // namespace

CompletionSession::CompletionSession(ValidatedRequest request,
                                     Options options,
                                     const Tokenizer& tokenizer,
                                     CompletionSink& sink,
                                     TimerThread& timer)
    : id_(request.request_id),
      options_(std::move(options)),
      timer_(timer),
      job_{.request_id = std::move(request.request_id),
           .sequence = std::move(request.sequence),
           .choices = request.choices,
           .stop = std::move(request.stop),
           .path = request.path,
           .deadline = options_.deadline,
           .tenant = options_.caller.tenant,
           .priority = request.priority,
           .session = std::move(request.session),
           .arrival = options_.arrival},
      prompt_tokens_(static_cast<std::uint32_t>(job_.sequence.prompt_size())),
      vocabulary_(static_cast<std::uint32_t>(tokenizer.vocabulary())),
      wants_logprobs_(job_.sequence.has_logprobs()),
      echo_complete_(!job_.sequence.prompt_logprobs()),
      span_(options_.spans, options_.span_name, options_.caller.traceparent),
      sink_(&sink) {
  job_.traceparent = span_.traceparent();
  span_.set_start(options_.arrival);
  span_.Add("gen_ai.request.id", id_);
  span_.Add("gen_ai.request.model", options_.model_name);
  span_.Add("gen_ai.request.max_tokens", std::int64_t{job_.sequence.max_tokens()});
  span_.Add("gen_ai.request.n", std::int64_t{job_.choices});
  span_.Add("gen_ai.request.temperature", double{job_.sequence.sampling().temperature()});
  choices_.reserve(job_.choices);
  for (std::uint32_t i = 0; i < job_.choices; ++i) {
    choices_.emplace_back(i, tokenizer, job_.stop, job_.sequence.min_tokens());
  }
  if (request.echo) {
    echo_ = EchoPrompt(tokenizer, job_.sequence);
  }
}

CompletionSession::~CompletionSession() {
  if (running_ != nullptr) {
    running_->Leave();
  }
}

absl::Status CompletionSession::Enter(std::shared_ptr<RunningRequests> running) {
  RETURN_IF_ERROR(running->Enter(id_, shared_from_this()));
  running_ = std::move(running);
  return absl::OkStatus();
}

void CompletionSession::Start(Generator& generator) {
  const TimerThread::Key key = timer_.Schedule(options_.deadline, [weak = weak_from_this()] {
    if (const std::shared_ptr<CompletionSession> session = weak.lock()) {
      session->Stop(absl::DeadlineExceededError("deadline of the request is over"));
    }
  });
  {
    absl::MutexLock lock(&mutex_);
    deadline_key_ = key;
  }
  std::shared_ptr<Generation> generation = generator.Start(std::move(job_), shared_from_this());
  bool cancel = false;
  {
    absl::MutexLock lock(&mutex_);
    generation_ = generation;
    cancel = cancel_wanted_;
  }
  if (cancel) {
    generation->Cancel();
  }
}

void CompletionSession::Stop(const absl::Status& why) {
  CompletionSink* held = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (!stop_cause_.has_value()) {
      stop_cause_ = why;
    }
    if (ended_ && sink_ != nullptr && sink_->Hold()) {
      held = sink_;
    }
  }
  CancelGeneration();
  if (held != nullptr) {
    held->CutHeld(why);
  }
}

void CompletionSession::Detach() {
  TimerThread::Key key;
  {
    absl::MutexLock lock(&mutex_);
    sink_ = nullptr;
    key = deadline_key_;
  }
  timer_.Cancel(key);
}

bool CompletionSession::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stop_cause_.has_value();
}

void CompletionSession::CancelGeneration() {
  std::shared_ptr<Generation> generation;
  {
    absl::MutexLock lock(&mutex_);
    cancel_wanted_ = true;
    generation = generation_;
  }
  if (generation != nullptr) {
    generation->Cancel();
  }
}

void CompletionSession::OnProgress(const GenerationResult& so_far) {
  result_ = so_far;
}

void CompletionSession::OnPromptLogprobs(v1::Logprobs logprobs) {
  if (!AddPromptLogprobs(logprobs, echo_)) {
    Stop(absl::InternalError(absl::StrCat(logprobs.tokens_size(),
                                          " log probabilities came for a prompt of ",
                                          prompt_tokens_, " tokens")));
    return;
  }
  echo_complete_ = true;
}

absl::Status CompletionSession::CheckToken(const GeneratedToken& token) const {
  if (token.choice >= choices_.size() || choices_[token.choice].closed()) {
    return absl::InternalError(absl::StrCat("a token came for choice ", token.choice,
                                            ", which has ended or was not asked for"));
  }
  if (token.id.value() >= vocabulary_) {
    return absl::InternalError(absl::StrCat("generated token ", token.id.value(),
                                            " is beyond the vocabulary of ", vocabulary_));
  }
  if (!echo_complete_ || token.logprob.has_value() != wants_logprobs_) {
    return absl::InternalError("a token came without the log probabilities that were asked for");
  }
  return absl::OkStatus();
}

void CompletionSession::OnToken(GeneratedToken token) {
  if (stopping()) {
    return;  // was on its way when the end was decided
  }
  if (const absl::Status status = CheckToken(token); !status.ok()) {
    Stop(status);
    return;
  }
  ChoiceStream& choice = choices_[token.choice];
  if (choice.stopped()) {
    return;
  }
  last_token_ = Clock::System().Now();
  if (completion_tokens_ == 0) {
    first_token_ = last_token_;
  }
  ++completion_tokens_;
  if (choice.begun() || SendEcho(token.choice)) {
    Send(choice.Append(token));
  }
}

std::size_t CompletionSession::open_choices() const {
  return static_cast<std::size_t>(
      std::count_if(choices_.begin(), choices_.end(),
                    [](const ChoiceStream& choice) { return !choice.closed(); }));
}

bool CompletionSession::all_stopped() const {
  return open_choices() > 0 && !chunk_lost_ &&
         std::all_of(choices_.begin(), choices_.end(), [](const ChoiceStream& choice) {
           return choice.closed() || choice.stopped();
         });
}

bool CompletionSession::Send(v1::Choice increment) {
  v1::CompleteChunk chunk = NewChunk();
  *chunk.mutable_choice() = std::move(increment);
  CompletionSink* sink = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    sink = sink_;  // stays: the call cannot end before this session has told it to
  }
  if (sink->OnChunk(std::move(chunk))) {
    return true;
  }
  chunk_lost_ = true;
  Stop(WithReason(absl::ResourceExhaustedError("client reads too slowly: too many chunks wait"),
                  "SLOW_READER"));
  return false;
}

bool CompletionSession::SendEcho(std::uint32_t choice) {
  for (v1::Choice increment : echo_) {
    increment.set_index(choice);
    if (!Send(std::move(increment))) {
      return false;
    }
  }
  return true;
}

void CompletionSession::OnChoiceEnd(std::uint32_t choice, v1::FinishReason reason) {
  if (stopping()) {
    return;
  }
  const bool known = reason == v1::FINISH_REASON_STOP || reason == v1::FINISH_REASON_LENGTH;
  if (choice >= choices_.size() || choices_[choice].closed() || !known) {
    Stop(absl::InternalError(absl::StrCat("choice ", choice, " ended twice or without a reason")));
    return;
  }
  Send(choices_[choice].Close(reason));
}

void CompletionSession::OnFinished(const GenerationResult& result) {
  result_ = result;
  const v1::FinishReason reason = result.finished.finish_reason();
  if (all_stopped()) {
    EndWell(v1::FINISH_REASON_STOP);
  } else if (stopping()) {
    EndBadly(absl::OkStatus(), /*cut=*/true);
  } else if (open_choices() != 1) {
    EndBadly(absl::InternalError("generation ended with choices that have not"), /*cut=*/false);
  } else if (reason == v1::FINISH_REASON_STOP || reason == v1::FINISH_REASON_LENGTH) {
    EndWell(reason);
  } else if (reason == v1::FINISH_REASON_CANCELLED) {
    EndBadly(absl::CancelledError("generation was cancelled"), /*cut=*/false);
  } else {
    EndBadly(absl::InternalError("generation ended without a reason"), /*cut=*/false);
  }
}

void CompletionSession::OnError(absl::Status status) {
  if (all_stopped()) {
    EndWell(v1::FINISH_REASON_STOP);
  } else {
    EndBadly(ForClient(std::move(status)), stopping());
  }
}

// Several choices may be open when all of them have met a stop string; the sums go with the last.
void CompletionSession::EndWell(v1::FinishReason reason) {
  v1::CompleteChunk last = NewChunk();
  for (ChoiceStream& choice : choices_) {
    if (choice.closed()) {
      continue;
    }
    if (open_choices() == 1) {
      *last.mutable_choice() = choice.Close(reason);
    } else if (!Send(choice.Close(reason))) {
      EndBadly(absl::OkStatus(), /*cut=*/true);
      return;
    }
  }
  v1::Usage& usage = *last.mutable_usage();
  usage.set_prompt_tokens(prompt_tokens_);
  usage.set_completion_tokens(completion_tokens_);
  usage.set_cached_prompt_tokens(result_.finished.cached_prompt_tokens());
  const v1::Timeline timeline = MakeTimeline();
  *last.mutable_timeline() = timeline;
  CompletionSink* sink = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    sink = sink_;
  }
  sink->OnChunk(std::move(last));
  Log(absl::OkStatus(), timeline);
  EndSpan(absl::OkStatus(), timeline);
  running_->End(id_, OutcomeName(timeline));
  Close(absl::OkStatus(), /*cut=*/false);
}

// The cause of a Stop goes before what the generator made of its cancellation.
void CompletionSession::EndBadly(const absl::Status& status, bool cut) {
  absl::Status shown = status;
  {
    absl::MutexLock lock(&mutex_);
    if (stop_cause_.has_value()) {
      shown = *stop_cause_;
    }
  }
  const v1::Timeline timeline = MakeTimeline();
  Log(shown, timeline);
  EndSpan(shown, timeline);
  running_->End(id_, absl::StatusCodeToString(shown.code()));
  Close(shown, cut);
}

void CompletionSession::Close(const absl::Status& status, bool cut) {
  CompletionSink* sink = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    sink = sink_;
  }
  sink->OnEnd(status, cut);
}

v1::CompleteChunk CompletionSession::NewChunk() const {
  v1::CompleteChunk chunk;
  chunk.set_id(id_);
  chunk.set_model(options_.model_name);
  return chunk;
}

v1::Timeline CompletionSession::MakeTimeline() const {
  const v1::GenerateEvent::Finished& finished = result_.finished;
  const TimePoint now = Clock::System().Now();
  v1::Timeline timeline;
  timeline.set_path(finished.split() ? v1::PATH_DISAGGREGATED : v1::PATH_COLOCATED);
  timeline.set_reason(result_.reason);
  timeline.set_transport(finished.transport());
  timeline.set_prefill_worker(finished.prefill_worker());
  timeline.set_decode_worker(finished.decode_worker());
  *timeline.mutable_queue() = finished.queue();
  *timeline.mutable_tokenize() = ToProtoDuration(options_.tokenize);
  *timeline.mutable_route() = ToProtoDuration(result_.route);
  *timeline.mutable_prefill() = finished.prefill();
  *timeline.mutable_transfer() = finished.transfer();
  *timeline.mutable_exposed_transfer() = finished.exposed_transfer();
  if (completion_tokens_ > 0) {
    *timeline.mutable_time_to_first_token() = ToProtoDuration(first_token_ - options_.arrival);
    *timeline.mutable_decode() = ToProtoDuration(last_token_ - first_token_);
  }
  *timeline.mutable_total() = ToProtoDuration(now - options_.arrival);
  return timeline;
}

void CompletionSession::Log(const absl::Status& status, const v1::Timeline& timeline) const {
  if (!status.ok()) {
    LogEvent(LogLevel::kInfo, "request.failed",
             {{"request", id_},
              {"status", absl::StatusCodeToString(status.code())},
              {"message", std::string(status.message())},
              {"prompt_tokens", prompt_tokens_},
              {"completion_tokens", completion_tokens_},
              {"total_ms", Milliseconds(timeline.total())}});
    return;
  }
  LogEvent(LogLevel::kInfo, "request.finished",
           {{"request", id_},
            {"path", v1::Path_Name(timeline.path())},
            {"reason", v1::RouteReason_Name(timeline.reason())},
            {"prefill_worker", timeline.prefill_worker()},
            {"decode_worker", timeline.decode_worker()},
            {"prompt_tokens", prompt_tokens_},
            {"completion_tokens", completion_tokens_},
            {"first_token_ms", Milliseconds(timeline.time_to_first_token())},
            {"total_ms", Milliseconds(timeline.total())}});
}

void CompletionSession::EndSpan(const absl::Status& status, const v1::Timeline& timeline) {
  if (!span_.recorded()) {
    return;
  }
  span_.Add("baton.tenant", options_.caller.tenant);
  span_.Add("gen_ai.usage.prompt_tokens", std::int64_t{prompt_tokens_});
  span_.Add("gen_ai.usage.completion_tokens", std::int64_t{completion_tokens_});
  if (status.ok()) {
    span_.Add("baton.path", v1::Path_Name(timeline.path()));
    span_.Add("baton.reason", v1::RouteReason_Name(timeline.reason()));
  }
  if (completion_tokens_ > 0) {
    span_.Add("gen_ai.latency.time_to_first_token", Seconds(timeline.time_to_first_token()));
    span_.Add("gen_ai.latency.time_in_queue", Seconds(timeline.queue()));
    span_.Add("gen_ai.latency.time_in_model_prefill", Seconds(timeline.prefill()));
    span_.Add("gen_ai.latency.time_in_model_decode", Seconds(timeline.decode()));
  }
  span_.Add("gen_ai.latency.e2e", Seconds(timeline.total()));
  span_.End(status);
}

}  // namespace baton
