#include "worker/registrar.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "common/tls_hint.h"

namespace baton {

// One address of one router.
struct Registrar::Registration {
  enum class State { kNew, kRegistered, kRefused, kLost };

  std::string router;
  std::string address;
  std::unique_ptr<RouterConnection> connection;
  std::unique_ptr<RegisterCall> call;  // null between two calls
  std::uint64_t call_number = 0;       // of the last one
  Duration pause;                      // before the next one
  State state = State::kNew;
  std::string why;  // refused
};

absl::StatusOr<std::unique_ptr<Registrar>> Registrar::Create(RegistrarOptions options,
                                                             ReportHub& hub) {
  ASSIGN_OR_RETURN(std::unique_ptr<RegisterClient> client, RegisterClient::Create(options.tls));
  return std::unique_ptr<Registrar>(new Registrar(std::move(options), hub, std::move(client)));
}

Registrar::Registrar(RegistrarOptions options,
                     ReportHub& hub,
                     std::unique_ptr<RegisterClient> client)
    : options_(std::move(options)), hub_(hub), client_(std::move(client)) {
  for (const std::string& router : options_.routers) {
    resolvers_.emplace_back(
        [this, router](const std::stop_token& stop) { KeepResolving(router, stop); });
  }
}

Registrar::~Registrar() {
  for (std::jthread& resolver : resolvers_) {
    resolver.request_stop();
  }
  resolvers_.clear();
  {
    absl::MutexLock lock(&mutex_);
    ++live_calls_;  // until the task below has run
  }
  executor_.Post([this] {
    stopping_ = true;
    addresses_.clear();
    DropUnwanted();
    absl::MutexLock lock(&mutex_);
    --live_calls_;
  });
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return live_calls_ == 0; };
  mutex_.Await(absl::Condition(&none));
}

void Registrar::KeepResolving(const std::string& router, const std::stop_token& stop) {
  bool failed = false;
  Duration pause = options_.retry_min;
  while (!stop.stop_requested()) {
    absl::StatusOr<std::vector<std::string>> addresses = options_.resolve(router, stop);
    if (addresses.ok()) {
      executor_.Post(
          [this, router, found = *std::move(addresses)] { TakeAddresses(router, found); });
      pause = options_.resolve_again;
    } else if (!stop.stop_requested()) {
      if (!failed) {
        LogEvent(LogLevel::kWarn, "router.unresolved",
                 {{"router", router}, {"status", addresses.status()}});
      }
      pause = failed ? std::min(2 * pause, options_.retry_max) : options_.retry_min;
    }
    failed = !addresses.ok();
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any().wait_for(lock, stop, pause, [] { return false; });
  }
}

void Registrar::TakeAddresses(const std::string& router,
                              const std::vector<std::string>& addresses) {
  if (stopping_) {
    return;
  }
  addresses_[router] = addresses;
  DropUnwanted();
  for (const std::string& address : addresses) {
    std::unique_ptr<Registration>& registration = registrations_[address];
    if (registration != nullptr) {
      continue;
    }
    registration = std::make_unique<Registration>();
    registration->router = router;
    registration->address = address;
    registration->pause = options_.retry_min;
    registration->connection = client_->Connect(address, router);
    Call(*registration);
  }
}

// Forgets the registrations whose address no name has any more. The ends of their calls are heard
// of, and ignored.
void Registrar::DropUnwanted() {
  const auto unwanted = [this](const auto& entry) {
    return std::ranges::none_of(addresses_, [&entry](const auto& of_router) {
      return std::ranges::count(of_router.second, entry.first) > 0;
    });
  };
  for (const auto& entry : registrations_) {
    if (unwanted(entry)) {
      LogEvent(LogLevel::kInfo, "router.dropped",
               {{"router", entry.second->router}, {"address", entry.first}});
      if (entry.second->call != nullptr) {
        entry.second->call->Cancel();
      }
    }
  }
  absl::erase_if(registrations_, unwanted);
}

void Registrar::Call(Registration& registration) {
  const std::uint64_t call = next_call_++;
  registration.call_number = call;
  {
    absl::MutexLock lock(&mutex_);
    ++live_calls_;
  }
  registration.call = registration.connection->Register(
      hub_,
      {.on_notice =
           [this, address = registration.address, call](const v1::RouterNotice& notice) {
             executor_.Post([this, address, call, notice] { OnNotice(address, call, notice); });
           },
       .on_end =
           [this, address = registration.address, call](const absl::Status& status) {
             executor_.Post([this, address, call, status] { OnCallEnd(address, call, status); });
           }});
}

void Registrar::OnNotice(const std::string& address,
                         std::uint64_t call,
                         const v1::RouterNotice& notice) {
  const auto it = registrations_.find(address);
  if (it == registrations_.end() || it->second->call_number != call) {
    return;
  }
  Registration& registration = *it->second;
  using State = Registration::State;
  if (notice.has_accepted()) {
    registration.pause = options_.retry_min;
    if (std::exchange(registration.state, State::kRegistered) != State::kRegistered) {
      LogEvent(LogLevel::kInfo, "router.registered",
               {{"router", registration.router}, {"address", address}});
    }
  } else if (notice.has_refused()) {
    const bool again =
        registration.state == State::kRefused && registration.why == notice.refused();
    registration.state = State::kRefused;
    registration.why = notice.refused();
    if (!again) {
      LogEvent(LogLevel::kWarn, "router.refused",
               {{"router", registration.router}, {"address", address}, {"why", registration.why}});
    }
  }
}

void Registrar::OnCallEnd(const std::string& address,
                          std::uint64_t call,
                          const absl::Status& status) {
  const auto it = registrations_.find(address);
  if (it != registrations_.end() && it->second->call_number == call) {
    Registration& registration = *it->second;
    registration.call.reset();
    using State = Registration::State;
    // A refusal may come as the status of the call too: it is told once, like a notice.
    const bool told =
        registration.state == State::kLost ||
        (registration.state == State::kRefused && registration.why == status.message());
    if (!told) {
      LogEvent(LogLevel::kWarn,
               registration.state == State::kNew ? "router.unreachable" : "router.lost",
               {{"router", registration.router},
                {"address", address},
                {"status", WithTlsHint(status, options_.tls.use())}});
      registration.state = State::kLost;
    }
    executor_.PostAt(Clock::System().Now() + NextPause(registration), [this, address, call] {
      const auto due = registrations_.find(address);
      if (due != registrations_.end() && due->second->call_number == call) {
        Call(*due->second);
      }
    });
  }
  absl::MutexLock lock(&mutex_);
  --live_calls_;
}

Duration Registrar::NextPause(Registration& registration) {
  const Duration pause = registration.pause;
  registration.pause = std::min(2 * pause, options_.retry_max);
  return std::chrono::duration_cast<Duration>(
      pause * std::uniform_real_distribution<double>(0.5, 1)(random_));
}

}  // namespace baton
