#include "frontend/completion_session.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
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
           .path = request.path,
           .deadline = options_.deadline},
      prompt_tokens_(static_cast<std::uint32_t>(job_.sequence.prompt_size())),
      vocabulary_(static_cast<std::uint32_t>(tokenizer.vocabulary())),
      text_(tokenizer, request.stop, job_.sequence.min_tokens()),
      sink_(&sink) {}

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

void CompletionSession::OnToken(TokenId id) {
  if (text_.stopped() || stopping()) {
    return;  // was on its way when the end was decided
  }
  if (id.value() >= vocabulary_) {
    Stop(absl::InternalError(absl::StrCat("generated token ", id.value(),
                                          " is beyond the vocabulary of ", vocabulary_)));
    return;
  }
  last_token_ = Clock::System().Now();
  if (completion_tokens_ == 0) {
    first_token_ = last_token_;
  }
  ++completion_tokens_;
  v1::CompleteChunk chunk = NewChunk();
  chunk.mutable_choice()->set_text(text_.Append(id));
  chunk.mutable_choice()->add_token_ids(id.value());
  CompletionSink* sink = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    sink = sink_;  // stays: the call cannot end before this session has told it to
  }
  if (!sink->OnChunk(std::move(chunk))) {
    Stop(WithReason(absl::ResourceExhaustedError("client reads too slowly: too many chunks wait"),
                    "SLOW_READER"));
  } else if (text_.stopped()) {
    CancelGeneration();
  }
}

void CompletionSession::OnFinished(const GenerationResult& result) {
  result_ = result;
  const v1::FinishReason reason = result.finished.finish_reason();
  if (text_.stopped()) {
    EndWell(v1::FINISH_REASON_STOP);
  } else if (stopping()) {
    EndBadly(absl::OkStatus(), /*cut=*/true);
  } else if (reason == v1::FINISH_REASON_STOP || reason == v1::FINISH_REASON_LENGTH) {
    EndWell(reason);
  } else if (reason == v1::FINISH_REASON_CANCELLED) {
    EndBadly(absl::CancelledError("generation was cancelled"), /*cut=*/false);
  } else {
    EndBadly(absl::InternalError("generation ended without a reason"), /*cut=*/false);
  }
}

void CompletionSession::OnError(absl::Status status) {
  if (text_.stopped() && status.code() == absl::StatusCode::kCancelled) {
    EndWell(v1::FINISH_REASON_STOP);
  } else {
    EndBadly(ForClient(std::move(status)), stopping());
  }
}

void CompletionSession::EndWell(v1::FinishReason reason) {
  v1::CompleteChunk last = NewChunk();
  if (!text_.stopped()) {
    last.mutable_choice()->set_text(text_.Finish());
  }
  last.mutable_choice()->set_finish_reason(text_.stopped() ? v1::FINISH_REASON_STOP : reason);
  last.mutable_choice()->set_stop_match(text_.stop_match());
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
  Log(shown, MakeTimeline());
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

}  // namespace baton
