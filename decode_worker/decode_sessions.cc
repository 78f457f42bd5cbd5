#include "decode_worker/decode_sessions.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "common/check.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

// Of a job that brings no deadline; the text edge always brings one.
constexpr Duration kLongestRequest = std::chrono::hours(1);
constexpr absl::Duration kLongestShutdown = absl::Seconds(10);

// For calls that are over before they begin.
class EndedGeneration final : public Generation {
 public:
  void Cancel() override {}
};

}  // namespace

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
                                                             IncomingHandoff::Listener listener) {
  {
    absl::MutexLock lock(&mutex_);
    ++live_handoffs_;
  }
  return {new IncomingHandoff(handoffs_, std::move(plan), std::move(listener)),
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
  observer = core_.requests().Observe(
      {.prompt_tokens = static_cast<std::uint32_t>(job.sequence.prompt_size()),
       .max_tokens = job.sequence.max_tokens(),
       .choices = job.choices},
      std::move(observer));
  if (const absl::Status alive = core_.CheckAlive(); !alive.ok()) {
    observer->OnError(alive);
    return std::make_shared<EndedGeneration>();
  }
  std::shared_ptr<DecodeSession> session;
  {
    absl::MutexLock lock(&mutex_);
    if (accepting_) {
      const std::uint64_t number = next_number_++;
      session = std::make_shared<DecodeSession>(
          DecodeSession::Owner{.core = core_,
                               .address = address_,
                               .make_handoff =
                                   [this](HandoffPlan plan, IncomingHandoff::Listener listener) {
                                     return MakeHandoff(std::move(plan), std::move(listener));
                                   },
                               .on_gone = [this, number] { Remove(number); }},
          job.reason, observer);
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

std::vector<std::shared_ptr<DecodeSession>> DecodeSessions::Alive() const {
  std::vector<std::shared_ptr<DecodeSession>> all;
  absl::MutexLock lock(&mutex_);
  for (const auto& [number, session] : sessions_) {
    if (auto alive = session.lock()) {
      all.push_back(std::move(alive));
    }
  }
  return all;
}

void DecodeSessions::CancelRest(const absl::Status& why) {
  for (const auto& session : Alive()) {
    session->CancelWith(why);
  }
}

void DecodeSessions::GiveUpWaiting(const absl::Status& why) {
  for (const auto& session : Alive()) {
    session->GiveUpUnlessBegun(why);
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
       .choices = job.choices,
       .stop = std::move(job.stop),
       .deadline = job.deadline.value_or(TimePoint::max()),
       .reason = job.path == v1::PATH_COLOCATED ? v1::ROUTE_REASON_REQUESTED
                                                : v1::ROUTE_REASON_NO_PREFILL_WORKER,
       .traceparent = std::move(job.traceparent)},
      std::move(observer));
}

}  // namespace baton
