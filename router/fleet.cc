#include "router/fleet.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/kv_layout.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "proto/identity_conversion.h"

namespace baton {

LoadMark::LoadMark(std::shared_ptr<WorkerCounts> load) : load_(std::move(load)) {
  load_->in_flight.fetch_add(1, std::memory_order_relaxed);
  load_->dispatched.fetch_add(1, std::memory_order_relaxed);
}

LoadMark::~LoadMark() {
  if (load_ != nullptr) {
    load_->in_flight.fetch_sub(1, std::memory_order_relaxed);
  }
}

LoadMark& LoadMark::operator=(LoadMark&& other) noexcept {
  std::swap(load_, other.load_);
  return *this;
}

// All but the first five are guarded by the fleet's mutex.
struct Fleet::Worker {
  v1::Role role = v1::ROLE_UNSPECIFIED;
  std::size_t number = 0;
  std::string address;
  std::unique_ptr<WorkerClient> client;
  std::shared_ptr<WorkerCounts> load = std::make_shared<WorkerCounts>();

  bool polling = false;
  bool asked = false;  // a first poll has ended, one way or the other
  TimePoint next_poll;
  bool alive = false;
  TimePoint last_answer;
  std::string problem = "has not answered yet";
  v1::WorkerDescription description;  // the last one received
  Digest layout{};

  bool usable() const { return alive && problem.empty(); }
};

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Create(FleetOptions options) {
  auto fleet = std::unique_ptr<Fleet>(new Fleet(std::move(options)));
  const auto add = [&fleet](v1::Role role, const std::vector<std::string>& addresses,
                            std::vector<std::unique_ptr<Worker>>& workers) -> absl::Status {
    for (const std::string& address : addresses) {
      auto worker = std::make_unique<Worker>();
      worker->role = role;
      worker->number = workers.size();
      worker->address = address;
      ASSIGN_OR_RETURN(worker->client, WorkerClient::Create(address, fleet->options_.tls));
      workers.push_back(std::move(worker));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(add(v1::ROLE_DECODE, fleet->options_.decode, fleet->decode_));
  RETURN_IF_ERROR(add(v1::ROLE_PREFILL, fleet->options_.prefill, fleet->prefill_));
  return fleet;
}

Fleet::Fleet(FleetOptions options) : options_(std::move(options)) {}

Fleet::~Fleet() {
  Stop();
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return polls_under_way_ == 0; };
  mutex_.Await(absl::Condition(&idle));
}

void Fleet::Start(std::function<void(bool)> can_serve) {
  can_serve_changed_ = std::move(can_serve);
  thread_ = std::jthread([this] { Run(); });
}

void Fleet::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Fleet::Run() {
  std::optional<bool> told;
  while (true) {
    std::vector<Worker*> due;
    bool can_serve = false;
    {
      absl::MutexLock lock(&mutex_);
      const TimePoint now = Clock::System().Now();
      if (stopping_) {
        return;
      }
      news_ = false;
      UpdateLiveness(now);
      can_serve = CanServe();
      due = TakeDue(now);
    }
    if (told != can_serve) {
      told = can_serve;
      can_serve_changed_(can_serve);
    }
    for (Worker* worker : due) {
      worker->client->Describe(options_.dead_after,
                               [this, worker](absl::StatusOr<v1::WorkerDescription> answer) {
                                 OnAnswer(*worker, std::move(answer));
                               });
    }
    absl::MutexLock lock(&mutex_);
    const auto awake = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return news_ || stopping_; };
    const Duration wait = NextEvent() - Clock::System().Now();
    mutex_.AwaitWithTimeout(absl::Condition(&awake), absl::FromChrono(wait));
  }
}

std::vector<Fleet::Worker*> Fleet::TakeDue(TimePoint now) {
  std::vector<Worker*> due;
  for (const auto* workers : {&decode_, &prefill_}) {
    for (const std::unique_ptr<Worker>& worker : *workers) {
      if (!worker->polling && worker->next_poll <= now) {
        worker->polling = true;
        worker->next_poll = now + options_.poll_interval;
        ++polls_under_way_;
        due.push_back(worker.get());
      }
    }
  }
  return due;
}

// When a poll is due or an answer has grown too old, whichever comes first.
TimePoint Fleet::NextEvent() const {
  TimePoint next = Clock::System().Now() + options_.poll_interval;
  for (const auto* workers : {&decode_, &prefill_}) {
    for (const std::unique_ptr<Worker>& worker : *workers) {
      if (!worker->polling) {
        next = std::min(next, worker->next_poll);
      }
      if (worker->alive) {
        next = std::min(next, worker->last_answer + options_.dead_after);
      }
    }
  }
  return next;
}

void Fleet::OnAnswer(Worker& worker, absl::StatusOr<v1::WorkerDescription> answer) {
  absl::MutexLock lock(&mutex_);
  worker.polling = false;
  worker.asked = true;
  --polls_under_way_;
  news_ = true;
  if (answer.ok()) {
    worker.last_answer = Clock::System().Now();
    Accept(worker, *std::move(answer));
    return;
  }
  // A poll that timed out says nothing new: the age of the last answer decides. Anything else means
  // that there is no worker at the other end of the connection.
  if (answer.status().code() == absl::StatusCode::kDeadlineExceeded) {
    return;
  }
  if (worker.alive) {
    LogEvent(LogLevel::kWarn, "fleet.worker_dead",
             {{"worker", worker.address}, {"why", std::string(answer.status().message())}});
  }
  worker.alive = false;
  worker.problem = absl::StrCat("is not reachable: ", std::string(answer.status().message()));
}

void Fleet::Accept(Worker& worker, v1::WorkerDescription description) {
  const std::string& before = worker.description.instance_id();
  if (!before.empty() && before != description.instance_id()) {
    LogEvent(LogLevel::kInfo, "fleet.worker_replaced",
             {{"worker", worker.address},
              {"before", ToHex(before)},
              {"now", ToHex(description.instance_id())}});
  }
  std::string problem = FindProblem(worker, description);
  if (!problem.empty() && problem != worker.problem) {
    LogEvent(LogLevel::kWarn, "fleet.worker_refused",
             {{"worker", worker.address}, {"why", problem}});
  } else if (problem.empty() && !worker.usable()) {
    LogEvent(LogLevel::kInfo, "fleet.worker_alive",
             {{"worker", worker.address}, {"instance", ToHex(description.instance_id())}});
  }
  worker.alive = true;
  worker.problem = std::move(problem);
  if (absl::StatusOr<EngineIdentity> identity = FromProto(description.identity()); identity.ok()) {
    worker.layout = LayoutFingerprint(*identity);
  }
  worker.description = std::move(description);
}

std::string Fleet::FindProblem(const Worker& worker,
                               const v1::WorkerDescription& description) const {
  if (description.role() != worker.role) {
    return absl::StrCat("is listed as ", v1::Role_Name(worker.role), ", but says it is ",
                        v1::Role_Name(description.role()));
  }
  if (!InstanceId::FromBytes(description.instance_id()).has_value()) {
    return "has no instance id of 16 bytes";
  }
  const absl::StatusOr<EngineIdentity> theirs = FromProto(description.identity());
  if (!theirs.ok()) {
    return absl::StrCat("has no valid identity: ", std::string(theirs.status().message()));
  }
  // The router has no engine: of an identity it knows the model and the tokenizer.
  EngineIdentity ours = *theirs;
  ours.model_fingerprint = options_.model_fingerprint;
  ours.tokenizer_fingerprint = options_.tokenizer_fingerprint;
  if (ours != *theirs) {
    return absl::StrCat("serves another model than the router: ",
                        DescribeDifference(ours, *theirs));
  }
  return description.draining() ? "is draining" : "";
}

void Fleet::UpdateLiveness(TimePoint now) {
  for (const auto* workers : {&decode_, &prefill_}) {
    for (const std::unique_ptr<Worker>& worker : *workers) {
      if (worker->alive && now - worker->last_answer >= options_.dead_after) {
        worker->alive = false;
        worker->problem = absl::StrCat("has not answered for ", options_.dead_after.count(), " ms");
        LogEvent(LogLevel::kWarn, "fleet.worker_dead",
                 {{"worker", worker->address}, {"why", worker->problem}});
      }
    }
  }
}

bool Fleet::CanServe() const {
  const auto asked = [](const std::unique_ptr<Worker>& worker) { return worker->asked; };
  const auto usable = [](const std::unique_ptr<Worker>& worker) { return worker->usable(); };
  return std::all_of(decode_.begin(), decode_.end(), asked) &&
         std::all_of(prefill_.begin(), prefill_.end(), asked) &&
         std::any_of(decode_.begin(), decode_.end(), usable);
}

FleetView Fleet::View() const {
  absl::MutexLock lock(&mutex_);
  const TimePoint now = Clock::System().Now();
  const auto collect = [&](const std::vector<std::unique_ptr<Worker>>& workers) {
    std::vector<WorkerView> views;
    for (const std::unique_ptr<Worker>& worker : workers) {
      if (!worker->usable() || now - worker->last_answer >= options_.dead_after) {
        continue;
      }
      views.push_back({.number = worker->number,
                       .address = worker->address,
                       .instance = *InstanceId::FromBytes(worker->description.instance_id()),
                       .layout = worker->layout,
                       .in_flight = worker->load->in_flight.load(std::memory_order_relaxed),
                       .dispatched = worker->load->dispatched.load(std::memory_order_relaxed)});
    }
    return views;
  };
  return {.decode = collect(decode_), .prefill = collect(prefill_)};
}

std::vector<v1::WorkerStatus> Fleet::Status() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::WorkerStatus> all;
  for (const auto* workers : {&decode_, &prefill_}) {
    for (const std::unique_ptr<Worker>& worker : *workers) {
      v1::WorkerStatus status;
      status.set_address(worker->address);
      status.set_alive(worker->alive);
      status.set_problem(worker->problem);
      *status.mutable_description() = worker->description;
      // Before the first answer the list is all that is known of it.
      if (status.description().role() == v1::ROLE_UNSPECIFIED) {
        status.mutable_description()->set_role(worker->role);
      }
      all.push_back(std::move(status));
    }
  }
  return all;
}

WorkerClient& Fleet::decode_client(std::size_t number) const {
  return *decode_[number]->client;
}

LoadMark Fleet::MarkDecode(std::size_t number) const {
  return LoadMark(decode_[number]->load);
}

LoadMark Fleet::MarkPrefill(std::size_t number) const {
  return LoadMark(prefill_[number]->load);
}

void Fleet::PollDecodeSoon(std::size_t number) {
  absl::MutexLock lock(&mutex_);
  decode_[number]->next_poll = Clock::System().Now();
  news_ = true;
}

}  // namespace baton
