#include "decode_worker/decode_sessions.h"

#include <atomic>
#include <utility>

#include "absl/time/time.h"
#include "common/check.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kRetryWhenFull(200);
// Of a job that brings no deadline; the text edge always brings one.
constexpr Duration kLongestRequest = std::chrono::hours(1);
constexpr absl::Duration kLongestShutdown = absl::Seconds(10);

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

// For calls that are over before they begin.
class EndedGeneration final : public Generation {
 public:
  void Cancel() override {}
};

}  // namespace

// One request: the engine's sink on one side, the observer on the other. Lives as long as the
// engine's sequence does.
class DecodeSessions::Session final : public Generation,
                                      public TokenSink,
                                      public std::enable_shared_from_this<Session> {
 public:
  Session(DecodeSessions& owner,
          std::uint64_t number,
          v1::RouteReason reason,
          std::string address,
          std::shared_ptr<GenerationObserver> observer)
      : owner_(owner), number_(number), observer_(std::move(observer)) {
    result_.reason = reason;
    result_.finished.set_decode_worker(std::move(address));
  }

  void Begin(DecodeJob job) {
    {
      absl::MutexLock lock(&mutex_);
      observer_->OnProgress(result_);
    }
    absl::StatusOr<SequenceRequest> request = MakeSequenceRequest(job.sequence);
    if (!request.ok()) {
      OnEnd({.status = request.status()});
      return;
    }
    request->request_id = job.request_id;
    request->deadline = job.deadline;
    request->sink = shared_from_this();
    if (!job.prefill.empty()) {
      request->kind = SequenceKind::kImport;
      handoff_ = owner_.MakeHandoff({.request_id = job.request_id,
                                     .sequence = std::move(job.sequence),
                                     .candidates = std::move(job.prefill),
                                     .forced = job.forced,
                                     .colocate_below_tokens = job.colocate_below_tokens,
                                     .deadline = job.deadline},
                                    [self = weak_from_this()](const HandoffReport& report) {
                                      if (const auto session = self.lock()) {
                                        session->Report(report);
                                      }
                                    });
      request->hooks = handoff_;
    }
    const absl::StatusOr<SequenceId> id = owner_.core_.engine().Submit(*std::move(request));
    if (!id.ok()) {
      OnEnd({.status = absl::IsResourceExhausted(id.status())
                           ? WithRetryAfter(id.status(), kRetryWhenFull)
                           : id.status()});
      return;
    }
    sequence_.store(id->value());
    if (handoff_ != nullptr) {
      handoff_->SetSequence(*id);
    }
  }

  void Cancel() override { CancelWith(absl::CancelledError("the request was cancelled")); }

  void CancelWith(const absl::Status& why) {
    owner_.core_.engine().Cancel(SequenceId(sequence_.load()), why);
  }

  void OnToken(const SelectedToken& token) override {
    absl::MutexLock lock(&mutex_);
    observer_->OnToken(token.token);
  }

  void OnEnd(const SequenceEnd& end) override {
    {
      absl::MutexLock lock(&mutex_);
      FillEnd(end);
      if (end.status.ok()) {
        observer_->OnFinished(result_);
      } else {
        observer_->OnError(end.status);
      }
      observer_.reset();
    }
    if (handoff_ != nullptr) {
      handoff_->Abandon();
    }
    owner_.Remove(number_);
  }

 private:
  void Report(const HandoffReport& report) {
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

  void FillEnd(const SequenceEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    v1::GenerateEvent::Finished& finished = result_.finished;
    finished.set_finish_reason(ToProto(end.reason));
    finished.set_cached_prompt_tokens(static_cast<std::uint32_t>(end.cached_tokens));
    // Both queues count; a prefill that failed elsewhere and was done here took what it took here.
    *finished.mutable_queue() = ToProtoDuration(end.queue + report_.queue);
    *finished.mutable_prefill() = ToProtoDuration(finished.split() ? report_.prefill : end.prefill);
    if (end.adopted.has_value() && report_.first_token.has_value()) {
      *finished.mutable_exposed_transfer() = ToProtoDuration(
          std::max(Duration::zero(), Duration(*end.adopted - *report_.first_token)));
    }
  }

  DecodeSessions& owner_;
  const std::uint64_t number_;
  std::atomic<std::uint64_t> sequence_{0};  // no engine sequence has this id until it is set
  std::shared_ptr<IncomingHandoff>
      handoff_;  // shared with its own pending events; null when colocated

  absl::Mutex mutex_;  // orders the observer's calls, which come from the engine's and the
                       // executor's thread
  std::shared_ptr<GenerationObserver> observer_ ABSL_GUARDED_BY(mutex_);  // null after the end
  GenerationResult result_ ABSL_GUARDED_BY(mutex_);
  HandoffReport report_ ABSL_GUARDED_BY(mutex_);
};

DecodeSessions::DecodeSessions(WorkerCore& core, PrefillClient& prefill, HandoffTimes times)
    : core_(core),
      handoffs_{.core = core, .prefill = prefill, .executor = executor_, .times = times} {}

DecodeSessions::~DecodeSessions() {
  StopIntake();
  CancelRest(absl::UnavailableError("this worker is shutting down"));
  absl::MutexLock lock(&mutex_);
  // Cancelled calls and fetches end by themselves, whatever their peers do.
  BATON_CHECK(
      mutex_.AwaitWithTimeout(absl::Condition(this, &DecodeSessions::IsIdle), kLongestShutdown));
}

std::shared_ptr<IncomingHandoff> DecodeSessions::MakeHandoff(HandoffPlan plan,
                                                             IncomingHandoff::Reporter reporter) {
  {
    absl::MutexLock lock(&mutex_);
    ++live_handoffs_;
  }
  return {new IncomingHandoff(handoffs_, std::move(plan), std::move(reporter)),
          [this](IncomingHandoff* handoff) {
            delete handoff;
            absl::MutexLock lock(&mutex_);
            --live_handoffs_;
          }};
}

void DecodeSessions::SetAddress(std::string address) {
  absl::MutexLock lock(&mutex_);
  address_ = std::move(address);
}

std::string DecodeSessions::address() const {
  absl::MutexLock lock(&mutex_);
  return address_;
}

std::shared_ptr<Generation> DecodeSessions::Start(DecodeJob job,
                                                  std::shared_ptr<GenerationObserver> observer) {
  std::shared_ptr<Session> session;
  {
    absl::MutexLock lock(&mutex_);
    if (accepting_) {
      const std::uint64_t number = next_number_++;
      session = std::make_shared<Session>(*this, number, job.reason, address_, observer);
      sessions_[number] = session;
    }
  }
  if (session == nullptr) {
    observer->OnError(
        WithReason(absl::UnavailableError("this worker is shutting down"), "DRAINING"));
    return std::make_shared<EndedGeneration>();
  }
  job.deadline = std::min(job.deadline, Clock::System().Now() + kLongestRequest);
  session->Begin(std::move(job));
  return session;
}

void DecodeSessions::StopIntake() {
  core_.SetDraining();
  absl::MutexLock lock(&mutex_);
  accepting_ = false;
}

std::size_t DecodeSessions::InFlight() const {
  absl::MutexLock lock(&mutex_);
  return sessions_.size();
}

void DecodeSessions::CancelRest(const absl::Status& why) {
  std::vector<std::shared_ptr<Session>> rest;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [number, session] : sessions_) {
      if (auto alive = session.lock()) {
        rest.push_back(std::move(alive));
      }
    }
  }
  for (const auto& session : rest) {
    session->CancelWith(why);
  }
}

void DecodeSessions::Remove(std::uint64_t number) {
  absl::MutexLock lock(&mutex_);
  sessions_.erase(number);
}

std::shared_ptr<Generation> LocalGenerator::Start(GenerationJob job,
                                                  std::shared_ptr<GenerationObserver> observer) {
  if (job.path == v1::PATH_DISAGGREGATED) {
    observer->OnError(
        WithReason(absl::UnavailableError(
                       "path: a decode worker by itself has no prefill worker; ask a router"),
                   "NO_PREFILL_WORKER"));
    return std::make_shared<EndedGeneration>();
  }
  return sessions_.Start(
      {.request_id = std::move(job.request_id),
       .sequence = std::move(job.sequence),
       .deadline = job.deadline.value_or(TimePoint::max()),
       .reason = job.path == v1::PATH_COLOCATED ? v1::ROUTE_REASON_REQUESTED
                                                : v1::ROUTE_REASON_NO_PREFILL_WORKER},
      std::move(observer));
}

}  // namespace baton
