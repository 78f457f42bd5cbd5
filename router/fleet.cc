#include "router/fleet.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "router/fleet_worker.h"
#include "router/worker_client_channel.h"
#include "router/worker_costs.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kFitEvery{1000};

std::uint64_t IdentityOf(const std::string& address) {
  std::uint64_t identity = 0;
  std::memcpy(&identity, Sha256Of(address).data(), sizeof(identity));
  return identity;
}

std::size_t BlockBytes(const v1::EngineIdentity& identity) {
  return identity.layer_bytes() * static_cast<std::size_t>(identity.layers());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Create(FleetOptions options, TieredIndex& index) {
  auto fleet = std::unique_ptr<Fleet>(new Fleet(std::move(options), index));
  RETURN_IF_ERROR(fleet->AddListed(v1::ROLE_DECODE, fleet->options_.decode));
  RETURN_IF_ERROR(fleet->AddListed(v1::ROLE_PREFILL, fleet->options_.prefill));
  return fleet;
}

Fleet::Fleet(FleetOptions options, TieredIndex& index)
    : options_(std::move(options)), index_(index), view_(std::make_shared<FleetView>()) {}

Fleet::~Fleet() {
  Stop();
  absl::MutexLock lock(&mutex_);
  const auto closed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return feeds_.empty(); };
  mutex_.Await(absl::Condition(&closed));
}

absl::Status Fleet::AddListed(v1::Role role, const std::vector<std::string>& addresses) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& address : addresses) {
    RETURN_IF_ERROR(AddWorker(role, address, /*listed=*/true).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<FleetWorker*> Fleet::AddWorker(v1::Role role,
                                              const std::string& address,
                                              bool listed) {
  auto place = std::find(workers_.begin(), workers_.end(), nullptr);
  if (place == workers_.end()) {
    if (workers_.size() >= kMostWorkers) {
      return absl::ResourceExhaustedError(
          absl::StrCat("this router has ", kMostWorkers, " workers already"));
    }
    place = workers_.emplace(workers_.end());
  }
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel,
                   MakeWorkerChannel(address, options_.tls));
  const WorkerSlot slot(static_cast<std::uint32_t>(place - workers_.begin()));
  *place = std::make_unique<FleetWorker>(slot, role, address, listed, index_);
  (*place)->channel = std::move(channel);
  (*place)->arrival = next_arrival_++;
  return place->get();
}

void Fleet::Start(std::function<void(bool)> can_serve,
                  std::function<void(const FleetRates&)> rates_fitted) {
  can_serve_changed_ = std::move(can_serve);
  rates_fitted_ = std::move(rates_fitted);
  thread_ = std::jthread([this] { Run(); });
}

void Fleet::Stop() {
  std::vector<std::shared_ptr<WatchReactor>> watches;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (const std::unique_ptr<FleetWorker>& worker : workers_) {
      if (worker != nullptr && worker->watch != nullptr) {
        watches.push_back(worker->watch);
      }
    }
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  for (const std::shared_ptr<WatchReactor>& watch : watches) {
    watch->Cancel();
  }
}

void Fleet::Run() {
  std::optional<bool> told;
  while (true) {
    std::vector<std::shared_ptr<WatchReactor>> due;
    bool can_serve = false;
    {
      absl::MutexLock lock(&mutex_);
      const TimePoint now = Clock::System().Now();
      if (stopping_) {
        return;
      }
      news_ = false;
      UpdateLiveness(now);
      ForgetGone(now);
      MakeView();
      can_serve = CanServe();
      due = TakeDue(now);
    }
    if (told != can_serve) {
      told = can_serve;
      can_serve_changed_(can_serve);
    }
    for (const std::shared_ptr<WatchReactor>& watch : due) {
      watch->Begin();
    }
    FitCosts();
    absl::MutexLock lock(&mutex_);
    const auto awake = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return news_ || stopping_; };
    const TimePoint now = Clock::System().Now();
    mutex_.AwaitWithTimeout(absl::Condition(&awake), absl::FromChrono(NextEvent(now) - now));
  }
}

// On the fleet's thread; the fitting takes no lock.
void Fleet::FitCosts() {
  std::vector<v1::WorkerDescription> described;
  std::vector<WorkerSlot> slots;
  {
    absl::MutexLock lock(&mutex_);
    const TimePoint now = Clock::System().Now();
    if (now < next_fit_) {
      return;
    }
    next_fit_ = now + kFitEvery;
    for (const std::unique_ptr<FleetWorker>& worker : workers_) {
      if (worker != nullptr && worker->usable()) {
        described.push_back(worker->description);
        slots.push_back(worker->slot);
      }
    }
  }
  FittedCosts costs = FitWorkerCosts(described);
  FleetRates rates = RatesOfAll(described);
  if (rates_fitted_) {
    rates_fitted_(rates);
  }
  absl::MutexLock lock(&mutex_);
  rates_ = std::move(rates);
  costs_ = costs.fleet;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    FleetWorker* worker = workers_[slots[i].value()].get();
    if (worker != nullptr && worker->instance == described[i].instance_id()) {
      worker->costs = std::move(costs.each[i]);
      view_is_old_ = true;
    }
  }
}

std::vector<std::shared_ptr<WatchReactor>> Fleet::TakeDue(TimePoint now) {
  std::vector<std::shared_ptr<WatchReactor>> due;
  for (const std::unique_ptr<FleetWorker>& worker : workers_) {
    if (worker != nullptr && worker->listed && worker->watch == nullptr &&
        worker->next_watch <= now) {
      worker->watch = std::make_shared<WatchReactor>(*this, worker->slot, worker->channel);
      worker->watch_begun = now;
      due.push_back(worker->watch);
    }
  }
  return due;
}

// When a watch is due, or a report or a word about a worker has grown too old, whichever is first.
TimePoint Fleet::NextEvent(TimePoint now) const {
  TimePoint next = std::max(next_fit_, now);
  for (const std::unique_ptr<FleetWorker>& worker : workers_) {
    if (worker == nullptr) {
      continue;
    }
    if (worker->listed && worker->watch == nullptr) {
      next = std::min(next, worker->next_watch);
    }
    if (worker->alive) {
      next = std::min(next, worker->last_report + options_.dead_after);
    }
    if (!worker->asked && worker->watch != nullptr) {
      next = std::min(next, worker->watch_begun + options_.dead_after);
    }
  }
  return next;
}

void Fleet::UpdateLiveness(TimePoint now) {
  for (const std::unique_ptr<FleetWorker>& worker : workers_) {
    if (worker == nullptr) {
      continue;
    }
    if (worker->alive && now - worker->last_report >= options_.dead_after) {
      worker->alive = false;
      worker->problem = absl::StrCat("has not answered for ", options_.dead_after.count(), " ms");
      view_is_old_ = true;
      LogEvent(LogLevel::kWarn, "fleet.worker_dead",
               {{"worker", worker->address}, {"why", worker->problem}});
    }
    worker->asked = worker->asked ||
                    (worker->watch != nullptr && now - worker->watch_begun >= options_.dead_after);
  }
}

void Fleet::ForgetGone(TimePoint now) {
  for (std::unique_ptr<FleetWorker>& worker : workers_) {
    if (worker != nullptr && !worker->listed && !worker->alive && worker->feeds.empty() &&
        now - worker->last_report >= options_.forget_after) {
      LogEvent(LogLevel::kInfo, "fleet.worker_forgotten", {{"worker", worker->address}});
      view_is_old_ = true;
      worker.reset();
    }
  }
}

bool Fleet::CanServe() const {
  bool usable = false;
  for (const std::unique_ptr<FleetWorker>& worker : workers_) {
    if (worker == nullptr) {
      continue;
    }
    if (worker->listed && !worker->asked) {
      return false;
    }
    usable = usable || (worker->role == v1::ROLE_DECODE && worker->usable());
  }
  return usable;
}

void Fleet::MakeView() {
  if (!std::exchange(view_is_old_, false)) {
    return;
  }
  auto view = std::make_shared<FleetView>();
  view->by_slot.resize(workers_.size());
  for (const std::unique_ptr<FleetWorker>& worker : workers_) {
    if (worker == nullptr || !worker->usable()) {
      continue;
    }
    const v1::WorkerDescription& description = worker->description;
    auto usable = std::make_shared<const UsableWorker>(
        UsableWorker{.slot = worker->slot,
                     .address = worker->address,
                     .identity = IdentityOf(worker->address),
                     .instance = *InstanceId::FromBytes(description.instance_id()),
                     .zone = description.zone(),
                     .layout = worker->layout,
                     .max_sequences = description.max_sequences(),
                     .channel = worker->channel,
                     .tls = options_.tls.use(),
                     .counts = worker->counts,
                     .costs = worker->costs.model,
                     .transport = worker->costs.transport,
                     .loads = LoadsOf(worker->costs.tiers, BlockBytes(description.identity()))});
    view->by_slot[worker->slot.value()] = usable;
    (worker->role == v1::ROLE_DECODE ? view->decode : view->prefill).push_back(std::move(usable));
  }
  view_ = std::move(view);
}

std::shared_ptr<const FleetView> Fleet::View() {
  absl::MutexLock lock(&mutex_);
  MakeView();
  return view_;
}

std::vector<v1::WorkerStatus> Fleet::Status() const {
  absl::MutexLock lock(&mutex_);
  std::vector<const FleetWorker*> shown;
  for (const std::unique_ptr<FleetWorker>& worker : workers_) {
    if (worker != nullptr) {
      shown.push_back(worker.get());
    }
  }
  std::sort(shown.begin(), shown.end(), [](const FleetWorker* a, const FleetWorker* b) {
    const bool a_later = a->role != v1::ROLE_DECODE;
    const bool b_later = b->role != v1::ROLE_DECODE;
    return std::tie(a_later, a->arrival) < std::tie(b_later, b->arrival);
  });
  std::vector<v1::WorkerStatus> all;
  for (const FleetWorker* worker : shown) {
    v1::WorkerStatus& status = all.emplace_back();
    status.set_address(worker->address);
    status.set_alive(worker->alive);
    status.set_problem(worker->problem);
    *status.mutable_description() = worker->description;
    // Before the first report the list is all that is known of it.
    status.mutable_description()->set_role(worker->role);
  }
  return all;
}

FleetRates Fleet::rates() const {
  absl::MutexLock lock(&mutex_);
  return rates_;
}

std::uint64_t Fleet::resyncs() const {
  absl::MutexLock lock(&mutex_);
  return resyncs_;
}

}  // namespace baton
