#include "kvtransfer/transfer_core.h"

#include <poll.h>
#include <time.h>

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(1);
constexpr Duration kFlush = std::chrono::milliseconds(100);

Duration ThreadTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransferCore>> TransferCore::Create(
    const TransferOptions& options, const TransportFactory& factory) {
  std::unique_ptr<TransferCore> core(new TransferCore(options));
  ASSIGN_OR_RETURN(core->transport_, factory(*core));
  core->parts_ = std::make_unique<Parts>(options, *core->transport_, core->stats_, *core);
  RETURN_IF_ERROR(
      core->transport_->RegisterRegion({.base = options.pool.base,
                                        .size_bytes = options.pool.layout.block_bytes() *
                                                      static_cast<std::size_t>(options.pool.blocks),
                                        .kind = options.pool.kind}));
  return core;
}

TransferCore::~TransferCore() = default;

bool TransferCore::Step() {
  bool worked = transport_->Progress();
  DeliverLosses();
  worked = parts_->server.Pump() || worked;
  const TimePoint now = options_.clock->Now();
  if (now >= next_tick_) {
    next_tick_ = now + kTick;
    stats_.thread_time = ThreadTime();
    parts_->connections.Tick(now);
    parts_->server.Tick(now);
    parts_->fetcher.Tick(now);
  }
  DeliverLosses();
  return worked;
}

bool TransferCore::moving() const {
  return parts_->server.moving() || stats_.receiving > 0;
}

bool TransferCore::busy() const {
  return parts_->server.open() > 0 || !parts_->fetcher.empty() || parts_->connections.greeting();
}

void TransferCore::Shutdown(Duration bound) {
  const TimePoint start = Clock::System().Now();
  parts_->server.EndAll(absl::UnavailableError("transfer service stopped"));
  parts_->fetcher.EndAll(absl::CancelledError("transfer service stopped"));
  StepUntil(start + std::min(kFlush, bound / 2), &TransferCore::Flushed);
  do {
    // Again and again: until the transport is gone, peers may connect.
    parts_->connections.CloseAll(absl::CancelledError("transfer service stopped"));
    DeliverLosses();
    StepUntil(std::min(start + bound, Clock::System().Now() + kTick), &TransferCore::Drained);
  } while (!Drained() && Clock::System().Now() < start + bound);
  if (!Drained()) {
    LogEvent(
        LogLevel::kWarn, "transfer.forced_down",
        {{"quarantined_blocks", stats_.quarantined_blocks}, {"connections", stats_.connections}});
  }
  // Without a transport nothing can touch the blocks any more.
  transport_.reset();
  parts_->server.FinishAll();
  parts_->fetcher.FinishAll();
}

void TransferCore::OnAccepted(PeerId peer) {
  parts_->connections.OnAccepted(peer);
}

void TransferCore::OnHeard(PeerId peer) {
  if (Connection* connection = parts_->connections.Find(peer)) {
    parts_->connections.OnHeard(*connection);
  }
}

void TransferCore::OnControl(PeerId peer, std::string_view header) {
  Connection* connection = parts_->connections.Find(peer);
  if (connection == nullptr) {
    return;
  }
  parts_->connections.OnHeard(*connection);
  const absl::StatusOr<wire::Message> message = wire::Decode(header);
  if (!message.ok()) {
    Count(*connection, DropReason::kMalformed);
    if (connection->state != ConnectionState::kGreeting) {
      return;
    }
    if (connection->outgoing) {
      // A peer of another version: its refusal is of that version too, so this is all we learn.
      parts_->connections.Close(peer, message.status());
    } else {
      parts_->connections.SendControl(
          peer,
          wire::Error{
              .code = static_cast<std::uint16_t>(message.status().code()),
              .text = std::string(message.status().message()).substr(0, wire::kMaxErrorText)});
    }
    return;
  }
  if (const std::optional<DropReason> dropped = Dispatch(*connection, *message)) {
    Count(*connection, *dropped);
  }
}

ReceivePlan TransferCore::OnData(PeerId peer, std::string_view header, std::size_t payload_bytes) {
  Connection* connection = parts_->connections.Find(peer);
  if (connection == nullptr) {
    return {};
  }
  parts_->connections.OnHeard(*connection);
  const absl::StatusOr<wire::Message> message = wire::Decode(header);
  const wire::Data* data = message.ok() ? std::get_if<wire::Data>(&*message) : nullptr;
  std::optional<DropReason> dropped;
  ReceivePlan plan;
  if (data == nullptr) {
    dropped = message.ok() ? DropReason::kUnexpected : DropReason::kMalformed;
  } else if (connection->state != ConnectionState::kReady) {
    dropped = DropReason::kUnexpected;
  } else {
    plan = parts_->fetcher.OnData(*connection, *data, payload_bytes, dropped);
  }
  if (dropped) {
    Count(*connection, *dropped);
  }
  return plan;
}

void TransferCore::OnReceived(PeerId peer, TransferToken token, const absl::Status& status) {
  OnHeard(peer);
  parts_->fetcher.OnReceived(token, status);
}

void TransferCore::OnSent(PeerId peer, TransferToken token, const absl::Status& status) {
  if (token == kControlToken) {
    parts_->connections.ControlSent();
  } else {
    parts_->server.OnSent(peer, token, status);
  }
}

void TransferCore::OnClosed(PeerId peer, const absl::Status& why) {
  parts_->connections.OnClosed(peer, why);
}

void TransferCore::OnReady(Connection& connection) {
  parts_->fetcher.OnConnected(connection);
}

std::vector<HandoffId> TransferCore::LeasesToRenew(PeerId peer) {
  return parts_->fetcher.OpenOn(peer);
}

std::optional<DropReason> TransferCore::Dispatch(Connection& connection,
                                                 const wire::Message& message) {
  ConnectionTable& connections = parts_->connections;
  if (const auto* hello = std::get_if<wire::Hello>(&message)) {
    return connections.OnHello(connection, *hello) ? std::nullopt
                                                   : std::optional(DropReason::kUnexpected);
  }
  if (const auto* welcome = std::get_if<wire::Welcome>(&message)) {
    return connections.OnWelcome(connection, *welcome) ? std::nullopt
                                                       : std::optional(DropReason::kUnexpected);
  }
  if (const auto* error = std::get_if<wire::Error>(&message)) {
    if (error->handoff != HandoffId{}) {
      return parts_->fetcher.OnError(connection, *error);
    }
    if (!connection.outgoing || connection.state != ConnectionState::kGreeting) {
      return DropReason::kUnexpected;
    }
    connections.Close(connection.peer, wire::ToStatus(*error));
    return std::nullopt;
  }
  if (connection.state != ConnectionState::kReady) {
    return DropReason::kUnexpected;
  }
  if (const auto* fetch = std::get_if<wire::Fetch>(&message)) {
    return parts_->server.OnFetch(connection, *fetch);
  }
  if (const auto* ack = std::get_if<wire::Ack>(&message)) {
    return parts_->server.OnAck(connection, *ack);
  }
  if (const auto* cancel = std::get_if<wire::Cancel>(&message)) {
    return parts_->server.OnCancel(connection, *cancel);
  }
  if (const auto* complete = std::get_if<wire::Complete>(&message)) {
    return parts_->fetcher.OnComplete(connection, *complete);
  }
  if (const auto* ready = std::get_if<wire::Ready>(&message)) {
    return parts_->fetcher.OnReady(connection, *ready);
  }
  if (const auto* released = std::get_if<wire::Released>(&message)) {
    return parts_->fetcher.OnReleased(connection, *released);
  }
  if (const auto* ping = std::get_if<wire::Ping>(&message)) {
    parts_->server.OnRenewals(connection, ping->renewed);
    connections.OnPing(connection, *ping);
    return std::nullopt;
  }
  // A pong has said all by arriving; data without a payload is no data.
  return std::holds_alternative<wire::Pong>(message) ? std::nullopt
                                                     : std::optional(DropReason::kUnexpected);
}

void TransferCore::Count(Connection& connection, DropReason reason) {
  ++stats_.dropped[static_cast<std::size_t>(reason)];
  LogEvent(LogLevel::kDebug, "message.dropped",
           {{"instance", connection.instance.ToString()}, {"reason", ToString(reason)}});
}

void TransferCore::DeliverLosses() {
  for (const ConnectionTable::Loss& loss : parts_->connections.TakeLosses()) {
    parts_->server.OnLost(loss.peer);
    parts_->fetcher.OnLost(loss.peer, loss.why);
  }
}

void TransferCore::StepUntil(TimePoint deadline, bool (TransferCore::*done)() const) {
  while (!(this->*done)() && Clock::System().Now() < deadline) {
    if (!Step()) {
      if (const std::optional<int> fd = PrepareToSleep()) {
        pollfd poll_fd{.fd = *fd, .events = POLLIN, .revents = 0};
        poll(&poll_fd, 1, 1);
      }
    }
  }
}

}  // namespace baton
