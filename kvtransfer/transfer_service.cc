#include "kvtransfer/transfer_service.h"

#include <poll.h>

#include <algorithm>
#include <future>
#include <thread>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/mailbox.h"
#include "common/status_macros.h"
#include "kvtransfer/layer_set.h"
#include "kvtransfer/transfer_core.h"
#include "kvtransfer/wakeup.h"

namespace baton {
namespace {

// While handoffs are open a wake-up that UCX misses costs no more than this.
constexpr Duration kBusySleep = std::chrono::milliseconds(5);
// While pieces are under way: without somebody who calls progress nothing overlaps.
constexpr Duration kMovingSleep = std::chrono::microseconds(200);
// While much arrives: being woken for every few packets costs both sides more than the copying; the
// socket holds what comes meanwhile.
constexpr Duration kStreamSleep = std::chrono::microseconds(100);

struct ReadyCommand {
  HandoffId id;
  ReadyRange range;
};
struct FinishCommand {
  HandoffId id;
};
struct WithdrawCommand {
  HandoffId id;
  absl::Status why;
};
struct CancelCommand {
  HandoffId id;
};
using Command = std::variant<OfferRequest,
                             ReadyCommand,
                             FinishCommand,
                             WithdrawCommand,
                             FetchRequest,
                             CancelCommand>;

absl::Status CheckOptions(const TransferOptions& options) {
  const KvLayout& layout = options.pool.layout;
  if (options.pool.base == nullptr || options.pool.blocks <= 0 || layout.layer_bytes == 0 ||
      layout.layers <= 0 || layout.layers > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot transfer a pool of ", options.pool.blocks, " blocks of ",
                     layout.layers, " layers of ", layout.layer_bytes, " bytes"));
  }
  if (options.messages_in_flight <= 0 || options.message_bytes == 0 ||
      options.instance == InstanceId{}) {
    return absl::InvalidArgumentError(
        "transfer options without an instance, message size or window");
  }
  return absl::OkStatus();
}

absl::Status CheckBlock(const PoolRegion& pool, BlockId block) {
  if (block.value() >= static_cast<std::uint32_t>(pool.blocks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("block ", block.value(), " in a pool of ", pool.blocks, " blocks"));
  }
  return absl::OkStatus();
}

absl::Status CheckOffer(const PoolRegion& pool, const OfferRequest& request) {
  if (request.sink == nullptr || request.id == HandoffId{} || request.blocks.empty()) {
    return absl::InvalidArgumentError("offer without an id, a sink or blocks");
  }
  for (const BlockId block : request.blocks) {
    RETURN_IF_ERROR(CheckBlock(pool, block));
  }
  return absl::OkStatus();
}

absl::Status CheckFetch(const PoolRegion& pool, const FetchRequest& request) {
  if (request.sink == nullptr || request.id == HandoffId{} || request.blocks.empty()) {
    return absl::InvalidArgumentError("fetch without an id, a sink or blocks");
  }
  absl::flat_hash_set<int> sources;
  absl::flat_hash_set<BlockId> destinations;
  for (const BlockMapping& mapping : request.blocks) {
    RETURN_IF_ERROR(CheckBlock(pool, mapping.destination));
    if (mapping.source_index < 0 || !sources.insert(mapping.source_index).second ||
        !destinations.insert(mapping.destination).second) {
      return absl::InvalidArgumentError(absl::StrCat("fetch names source block ",
                                                     mapping.source_index, " or destination ",
                                                     mapping.destination.value(), " twice"));
    }
  }
  return absl::OkStatus();
}

void Execute(TransferCore& core, Command command) {
  if (auto* offer = std::get_if<OfferRequest>(&command)) {
    core.server().Offer(std::move(*offer));
  } else if (const auto* ready = std::get_if<ReadyCommand>(&command)) {
    core.server().MarkReady(ready->id, ready->range);
  } else if (const auto* finish = std::get_if<FinishCommand>(&command)) {
    core.server().FinishComputing(finish->id);
  } else if (const auto* withdraw = std::get_if<WithdrawCommand>(&command)) {
    core.server().Withdraw(withdraw->id, withdraw->why);
  } else if (auto* fetch = std::get_if<FetchRequest>(&command)) {
    core.fetcher().Start(std::move(*fetch));
  } else if (const auto* cancel = std::get_if<CancelCommand>(&command)) {
    core.fetcher().Cancel(cancel->id);
  }
}

}  // namespace

class TransferService::Impl {
 public:
  Impl(TransferOptions options, Wakeup wakeup)
      : options_(std::move(options)),
        wakeup_(std::move(wakeup)),
        mailbox_(options_.mailbox_capacity, [this] { wakeup_.Notify(); }) {}

  // Returns once the transport listens or has failed to.
  absl::Status Run(TransportFactory factory) {
    std::promise<absl::Status> started;
    std::future<absl::Status> outcome = started.get_future();
    thread_ =
        std::jthread([this, factory = std::move(factory), &started] { Main(factory, started); });
    return outcome.get();
  }

  void Stop(Duration bound) {
    absl::MutexLock lock(&stop_mutex_);
    if (thread_.joinable()) {
      stop_bound_ = bound;
      mailbox_.Close();
      thread_.join();
    }
  }

  const TransferOptions& options() const { return options_; }
  const std::string& address() const { return address_; }
  Mailbox<Command>& mailbox() { return mailbox_; }

  TransferStats stats() const {
    absl::MutexLock lock(&stats_mutex_);
    return published_;
  }

 private:
  void Main(const TransportFactory& factory, std::promise<absl::Status>& started) {
    absl::StatusOr<std::unique_ptr<TransferCore>> made = TransferCore::Create(options_, factory);
    if (!made.ok()) {
      mailbox_.Close();
      started.set_value(made.status());
      return;
    }
    TransferCore& core = **made;
    address_ = core.address();
    started.set_value(absl::OkStatus());

    while (!mailbox_.closed()) {
      const bool commanded = wakeup_.Consume() && ExecuteWaiting(core);
      const bool worked = core.Step();
      Publish(core.stats());
      if (!commanded && !worked) {
        Sleep(core);
      }
    }
    ExecuteWaiting(core);
    core.Shutdown(stop_bound_);
    Publish(core.stats());
  }

  bool ExecuteWaiting(TransferCore& core) {
    std::deque<Command> commands = mailbox_.PopAll(absl::ZeroDuration());
    for (Command& command : commands) {
      Execute(core, std::move(command));
    }
    return !commands.empty();
  }

  void Sleep(TransferCore& core) {
    if (core.streaming()) {
      SleepFor(kStreamSleep, std::nullopt);
      return;
    }
    const std::optional<int> transport_fd = core.PrepareToSleep();
    if (!transport_fd) {
      return;
    }
    Duration most = options_.times.heartbeat;
    if (core.busy()) {
      most = std::min(most, core.moving() ? kMovingSleep : kBusySleep);
    }
    SleepFor(most, transport_fd);
  }

  // Until then, a command, or an event of the transport.
  void SleepFor(Duration most, std::optional<int> transport_fd) {
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(most);
    const timespec timeout{.tv_sec = nanoseconds.count() / 1'000'000'000,
                           .tv_nsec = nanoseconds.count() % 1'000'000'000};
    pollfd fds[] = {{.fd = wakeup_.fd(), .events = POLLIN, .revents = 0},
                    {.fd = transport_fd.value_or(-1), .events = POLLIN, .revents = 0}};
    // An interrupted or failed sleep is a short one.
    ppoll(fds, transport_fd ? 2 : 1, &timeout, nullptr);
  }

  void Publish(const TransferStats& stats) {
    absl::MutexLock lock(&stats_mutex_);
    published_ = stats;
  }

  const TransferOptions options_;
  Wakeup wakeup_;
  Mailbox<Command> mailbox_;
  std::string address_;    // written before Run returns, constant afterwards
  Duration stop_bound_{};  // written before the mailbox is closed, read after
  mutable absl::Mutex stats_mutex_;
  TransferStats published_ ABSL_GUARDED_BY(stats_mutex_);
  absl::Mutex stop_mutex_;
  std::jthread thread_;
};

absl::StatusOr<std::unique_ptr<TransferService>> TransferService::Start(
    TransferOptions options, TransportFactory transport) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(Wakeup wakeup, Wakeup::Create());
  auto impl = std::make_unique<Impl>(std::move(options), std::move(wakeup));
  RETURN_IF_ERROR(impl->Run(std::move(transport)));
  return std::unique_ptr<TransferService>(new TransferService(std::move(impl)));
}

TransferService::TransferService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

TransferService::~TransferService() {
  Stop(std::chrono::seconds(1));
}

const std::string& TransferService::address() const {
  return impl_->address();
}

absl::Status TransferService::Offer(OfferRequest request) {
  RETURN_IF_ERROR(CheckOffer(impl_->options().pool, request));
  return impl_->mailbox().Push(std::move(request));
}

// What follows ends or continues something admitted, so it is never refused for want of room; after
// Stop there is nothing left to tell.
void TransferService::MarkReady(HandoffId id, ReadyRange range) {
  impl_->mailbox().PushEnding(ReadyCommand{id, range}).IgnoreError();
}

void TransferService::FinishComputing(HandoffId id) {
  impl_->mailbox().PushEnding(FinishCommand{id}).IgnoreError();
}

void TransferService::Withdraw(HandoffId id, absl::Status why) {
  impl_->mailbox().PushEnding(WithdrawCommand{id, std::move(why)}).IgnoreError();
}

absl::Status TransferService::Fetch(FetchRequest request) {
  RETURN_IF_ERROR(CheckFetch(impl_->options().pool, request));
  return impl_->mailbox().Push(std::move(request));
}

void TransferService::CancelFetch(HandoffId id) {
  impl_->mailbox().PushEnding(CancelCommand{id}).IgnoreError();
}

TransferStats TransferService::stats() const {
  return impl_->stats();
}

void TransferService::Stop(Duration bound) {
  impl_->Stop(bound);
}

}  // namespace baton
