#include "router/admission.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/status_conversion.h"
#include "router/admission_queue.h"

namespace baton {
namespace {

// While something waits: how often deadlines are looked at, and whether the limit has risen.
constexpr std::chrono::milliseconds kLookInterval{20};

constexpr std::chrono::milliseconds kFirstRetry{1000};  // before a pace is known
constexpr std::chrono::milliseconds kLeastRetry{100};
constexpr std::chrono::milliseconds kMostRetry{30'000};

std::uint64_t CostTokens(const GenerationJob& job) {
  return static_cast<std::uint64_t>(job.sequence.prompt_size()) +
         std::uint64_t{job.choices} * job.sequence.max_tokens();
}

}  // namespace

// One request: a waiting one, then an observer between the inner generation and the caller's.
//
// Whoever takes it out of the desk's queue, under the desk's lock, goes on with it.
class AdmissionGenerator::Ticket final : public Generation,
                                         public GenerationObserver,
                                         public std::enable_shared_from_this<Ticket> {
 public:
  Ticket(std::shared_ptr<Desk> desk,
         GenerationJob job,
         std::shared_ptr<GenerationObserver> observer)
      : desk_(std::move(desk)),
        sequences_(std::max(job.choices, 1u)),
        deadline_(job.deadline),
        job_(std::move(job)),
        observer_(std::move(observer)) {}

  // Admitted after a wait of so long.
  void Go(Generator& inner, Duration waited);
  // Ends it unadmitted.
  void Refuse(absl::Status why) { std::exchange(observer_, nullptr)->OnError(std::move(why)); }

  void Cancel() override;

  void OnProgress(const GenerationResult& so_far) override {
    observer_->OnProgress(WithWait(so_far));
  }
  void OnPromptLogprobs(v1::Logprobs logprobs) override {
    observer_->OnPromptLogprobs(std::move(logprobs));
  }
  void OnToken(GeneratedToken token) override { observer_->OnToken(std::move(token)); }
  void OnChoiceEnd(std::uint32_t choice, v1::FinishReason reason) override {
    observer_->OnChoiceEnd(choice, reason);
  }
  void OnFinished(const GenerationResult& result) override;
  void OnError(absl::Status status) override;

  std::size_t sequences() const { return sequences_; }
  bool IsLate(TimePoint now) const { return deadline_.has_value() && *deadline_ <= now; }
  const GenerationJob& job() const { return job_; }  // before Go

  // Of the desk, under its lock.
  std::uint64_t number = 0;
  TimePoint since;  // it waits

 private:
  GenerationResult WithWait(GenerationResult result) const {
    google::protobuf::Duration& queue = *result.finished.mutable_queue();
    queue = ToProtoDuration(FromProtoDuration(queue) + waited_);
    return result;
  }

  const std::shared_ptr<Desk> desk_;
  const std::size_t sequences_;
  const std::optional<TimePoint> deadline_;
  GenerationJob job_;  // until Go
  Duration waited_{0};
  std::shared_ptr<GenerationObserver> observer_;  // null once it has heard the end

  absl::Mutex mutex_;
  std::shared_ptr<Generation> generation_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

// Who runs and who waits. Thread-safe; calls nobody but `limit` with its lock held.
class AdmissionGenerator::Desk final : public std::enable_shared_from_this<Desk> {
 public:
  Desk(Generator& inner, AdmissionOptions options) : inner_(inner), options_(std::move(options)) {}

  void Enter(const std::shared_ptr<Ticket>& ticket, TimerThread& timer);
  // Takes a waiting request out; false when it is not waiting any more.
  bool Withdraw(const Ticket& ticket);
  // Refuses all that wait.
  void Close(const absl::Status& why);
  // An admitted request has ended.
  void Leave(std::size_t sequences);
  v1::AdmissionStatus Status() const;

 private:
  using Tickets = std::vector<std::shared_ptr<Ticket>>;

  bool HasRoom(std::size_t sequences) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enqueue(const std::shared_ptr<Ticket>& ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Ticket> Dequeue(std::uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Tickets TakeLate(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Tickets TakeReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FullError() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchQueue(TimerThread& timer);
  void Look(TimerThread& timer);
  void Pump();

  Generator& inner_;
  const AdmissionOptions options_;

  mutable absl::Mutex mutex_;
  AdmissionQueue queue_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::uint64_t, std::shared_ptr<Ticket>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  std::size_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // sequences
  std::uint64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;  // Look is scheduled
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;   // some thread is in Pump
  bool pump_again_ ABSL_GUARDED_BY(mutex_) = false;
  // The pace: time between the ends of two requests while others wait.
  Duration pace_ ABSL_GUARDED_BY(mutex_){0};  // smoothed; 0: not known
  TimePoint pace_from_ ABSL_GUARDED_BY(mutex_);
};

void AdmissionGenerator::Ticket::Go(Generator& inner, Duration waited) {
  waited_ = waited;
  std::shared_ptr<Generation> generation = inner.Start(std::move(job_), shared_from_this());
  bool cancel = false;
  {
    absl::MutexLock lock(&mutex_);
    generation_ = generation;
    cancel = cancelled_;
  }
  if (cancel) {
    generation->Cancel();
  }
}

void AdmissionGenerator::Ticket::Cancel() {
  const std::shared_ptr<Ticket> self = shared_from_this();
  if (desk_->Withdraw(*this)) {
    Refuse(absl::CancelledError("the request was cancelled while it waited to be admitted"));
    return;
  }
  std::shared_ptr<Generation> generation;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    generation = generation_;
  }
  if (generation != nullptr) {
    generation->Cancel();
  }
}

// The place is free before the client hears of the end, so that its next request finds it.
void AdmissionGenerator::Ticket::OnFinished(const GenerationResult& result) {
  const std::shared_ptr<Ticket> self = shared_from_this();
  desk_->Leave(sequences_);
  std::exchange(observer_, nullptr)->OnFinished(WithWait(result));
}

void AdmissionGenerator::Ticket::OnError(absl::Status status) {
  const std::shared_ptr<Ticket> self = shared_from_this();
  desk_->Leave(sequences_);
  Refuse(std::move(status));
}

bool AdmissionGenerator::Desk::HasRoom(std::size_t sequences) const {
  const std::size_t limit = options_.limit();
  return limit == 0 || running_ == 0 || running_ + sequences <= limit;
}

void AdmissionGenerator::Desk::Enter(const std::shared_ptr<Ticket>& ticket, TimerThread& timer) {
  bool go = false;
  std::shared_ptr<Ticket> refused;
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    go = queue_.empty() && HasRoom(ticket->sequences());
    if (go) {
      running_ += ticket->sequences();
    } else if (queue_.size() < options_.queue_size) {
      Enqueue(ticket);
    } else {
      why = FullError();
      const std::optional<std::uint64_t> displaced =
          queue_.Displaced(ticket->job().tenant, ticket->job().priority);
      refused = displaced.has_value() ? Dequeue(*displaced) : ticket;
      if (displaced.has_value()) {
        Enqueue(ticket);
      }
    }
  }
  if (go) {
    ticket->Go(inner_, Duration::zero());
    return;
  }
  if (refused != nullptr) {
    refused->Refuse(std::move(why));
  }
  if (refused != ticket) {
    WatchQueue(timer);
  }
}

void AdmissionGenerator::Desk::Enqueue(const std::shared_ptr<Ticket>& ticket) {
  const TimePoint now = Clock::System().Now();
  if (queue_.empty()) {
    pace_from_ = now;
  }
  ticket->number = next_number_++;
  ticket->since = now;
  queue_.Push({.number = ticket->number,
               .tenant = ticket->job().tenant,
               .priority = ticket->job().priority,
               .cost_tokens = CostTokens(ticket->job())});
  waiting_[ticket->number] = ticket;
}

std::shared_ptr<AdmissionGenerator::Ticket> AdmissionGenerator::Desk::Dequeue(
    std::uint64_t number) {
  queue_.Erase(number);
  const auto found = waiting_.find(number);
  std::shared_ptr<Ticket> ticket = std::move(found->second);
  waiting_.erase(found);
  return ticket;
}

bool AdmissionGenerator::Desk::Withdraw(const Ticket& ticket) {
  std::shared_ptr<Ticket> taken;  // its last owner may be here: destroyed without the lock
  {
    absl::MutexLock lock(&mutex_);
    if (!waiting_.contains(ticket.number)) {
      return false;
    }
    taken = Dequeue(ticket.number);
  }
  // It may have been the wide one that everybody waited behind.
  Pump();
  return true;
}

void AdmissionGenerator::Desk::Leave(std::size_t sequences) {
  {
    absl::MutexLock lock(&mutex_);
    running_ -= sequences;
    if (queue_.empty()) {
      return;
    }
    const TimePoint now = Clock::System().Now();
    const Duration took = now - pace_from_;
    pace_from_ = now;
    pace_ = pace_ == Duration::zero() ? took : (9 * pace_ + took) / 10;
  }
  Pump();
}

// With a spread of up to a half, so that those who were refused together do not come back together.
absl::Status AdmissionGenerator::Desk::FullError() {
  constexpr double kGoldenRatio = 0.6180339887;
  ++refused_;
  auto delay = std::chrono::duration_cast<std::chrono::milliseconds>(
      static_cast<Duration::rep>(queue_.size()) * pace_);
  delay = pace_ == Duration::zero() ? kFirstRetry : std::clamp(delay, kLeastRetry, kMostRetry);
  const double turns = static_cast<double>(refused_) * kGoldenRatio;
  const double spread = 0.5 * (turns - static_cast<double>(static_cast<std::uint64_t>(turns)));
  delay += std::chrono::milliseconds(
      static_cast<std::chrono::milliseconds::rep>(static_cast<double>(delay.count()) * spread));
  return WithReason(
      WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", queue_.size(),
                                                               " requests wait to be admitted")),
                     delay),
      "QUEUE_FULL");
}

void AdmissionGenerator::Desk::WatchQueue(TimerThread& timer) {
  {
    absl::MutexLock lock(&mutex_);
    if (watching_ || queue_.empty()) {
      return;
    }
    watching_ = true;
  }
  timer.Schedule(Clock::System().Now() + kLookInterval, [this, &timer] { Look(timer); });
}

void AdmissionGenerator::Desk::Look(TimerThread& timer) {
  Tickets late;
  {
    absl::MutexLock lock(&mutex_);
    watching_ = false;
    late = TakeLate(Clock::System().Now());
  }
  for (const std::shared_ptr<Ticket>& ticket : late) {
    ticket->Refuse(absl::DeadlineExceededError(
        "the deadline of the request passed while it waited to be admitted"));
  }
  Pump();
  WatchQueue(timer);
}

AdmissionGenerator::Desk::Tickets AdmissionGenerator::Desk::TakeLate(TimePoint now) {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, ticket] : waiting_) {
    if (ticket->IsLate(now)) {
      numbers.push_back(number);
    }
  }
  Tickets late;
  for (const std::uint64_t number : numbers) {
    late.push_back(Dequeue(number));
  }
  return late;
}

AdmissionGenerator::Desk::Tickets AdmissionGenerator::Desk::TakeReady() {
  Tickets ready;
  for (std::optional<std::uint64_t> front = queue_.Front(); front.has_value();
       front = queue_.Front()) {
    const std::size_t sequences = waiting_.at(*front)->sequences();
    if (!HasRoom(sequences)) {
      break;
    }
    running_ += sequences;
    ready.push_back(Dequeue(*front));
  }
  return ready;
}

// Admits what has room now. One thread at a time: a request that fails at once ends inside its own
// admission, and would otherwise admit the next one a level deeper.
void AdmissionGenerator::Desk::Pump() {
  {
    absl::MutexLock lock(&mutex_);
    pump_again_ = true;
    if (pumping_) {
      return;
    }
    pumping_ = true;
  }
  while (true) {
    Tickets ready;
    {
      absl::MutexLock lock(&mutex_);
      if (!pump_again_) {
        pumping_ = false;
        return;
      }
      pump_again_ = false;
      ready = TakeReady();
    }
    for (const std::shared_ptr<Ticket>& ticket : ready) {
      const TimePoint now = Clock::System().Now();
      if (ticket->IsLate(now)) {
        Leave(ticket->sequences());
        ticket->Refuse(absl::DeadlineExceededError(
            "the deadline of the request passed while it waited to be admitted"));
      } else {
        ticket->Go(inner_, now - ticket->since);
      }
    }
  }
}

void AdmissionGenerator::Desk::Close(const absl::Status& why) {
  absl::flat_hash_map<std::uint64_t, std::shared_ptr<Ticket>> rest;
  {
    absl::MutexLock lock(&mutex_);
    rest = std::exchange(waiting_, {});
    for (const auto& [number, ticket] : rest) {
      queue_.Erase(number);
    }
  }
  for (const auto& [number, ticket] : rest) {
    ticket->Refuse(why);
  }
}

v1::AdmissionStatus AdmissionGenerator::Desk::Status() const {
  absl::MutexLock lock(&mutex_);
  v1::AdmissionStatus status;
  status.set_queued(static_cast<std::uint32_t>(queue_.size()));
  status.set_queue_size(static_cast<std::uint32_t>(options_.queue_size));
  status.set_running(static_cast<std::uint32_t>(running_));
  status.set_refused(refused_);
  return status;
}

AdmissionGenerator::AdmissionGenerator(Generator& inner, AdmissionOptions options)
    : desk_(std::make_shared<Desk>(inner, std::move(options))) {}

AdmissionGenerator::~AdmissionGenerator() {
  desk_->Close(absl::UnavailableError("server is shutting down"));
}

std::shared_ptr<Generation> AdmissionGenerator::Start(
    GenerationJob job, std::shared_ptr<GenerationObserver> observer) {
  auto ticket = std::make_shared<Ticket>(desk_, std::move(job), std::move(observer));
  desk_->Enter(ticket, timer_);
  return ticket;
}

v1::AdmissionStatus AdmissionGenerator::Status() const {
  return desk_->Status();
}

}  // namespace baton
