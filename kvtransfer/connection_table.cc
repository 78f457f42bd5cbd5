#include "kvtransfer/connection_table.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton {

ConnectionTable::ConnectionTable(const TransferOptions& options,
                                 Transport& transport,
                                 TransferStats& stats,
                                 Observer& observer)
    : options_(options), transport_(transport), stats_(stats), observer_(observer) {}

absl::StatusOr<Connection*> ConnectionTable::Reach(const Route& route,
                                                   InstanceId instance,
                                                   Duration patience) {
  for (auto& [peer, connection] : connections_) {
    if (connection->outgoing && connection->state != ConnectionState::kClosing &&
        connection->instance == instance && connection->route == route) {
      return connection.get();
    }
  }
  const TimePoint now = Now();
  if (const auto pause = pauses_.find(Target(route.address, instance));
      pause != pauses_.end() && now < pause->second.until) {
    return absl::UnavailableError(
        absl::StrCat("peer at ", route.address, " could not be reached a moment ago"));
  }
  ++stats_.connects;
  absl::StatusOr<PeerId> peer = transport_.Connect(route.address);
  if (!peer.ok()) {
    return peer.status();
  }
  Connection& connection = Add(*peer);
  connection.outgoing = true;
  connection.route = route;
  connection.instance = instance;
  connection.greeting_deadline = now + patience;
  SendControl(*peer, wire::Hello{.instance = options_.instance,
                                 .layout_fingerprint = options_.layout_fingerprint});
  return &connection;
}

Connection* ConnectionTable::Find(PeerId peer) {
  const auto found = connections_.find(peer);
  return found == connections_.end() || found->second->state == ConnectionState::kClosing
             ? nullptr
             : found->second.get();
}

void ConnectionTable::AddHandoff(Connection& connection) {
  if (connection.open_handoffs++ == 0 && !connection.in_doubt) {
    connection.in_doubt = true;
    // Nobody was listening for silence until now.
    connection.last_heard = Now();
    connection.next_ping = connection.last_heard + options_.times.heartbeat;
    connection.suspect = false;
  }
}

void ConnectionTable::RemoveHandoff(PeerId peer) {
  if (Connection* connection = Find(peer)) {
    --connection->open_handoffs;
  }
}

void ConnectionTable::SendControl(PeerId peer, const wire::Message& message) {
  Connection* const connection = Find(peer);
  if (connection == nullptr) {
    return;
  }
  if (connection->outgoing && connection->state == ConnectionState::kGreeting &&
      !std::holds_alternative<wire::Hello>(message)) {
    connection->after_greeting.push_back(message);
    return;
  }
  const absl::Status sent = transport_.Send(
      peer, {.header = wire::Encode(message), .payload = {}, .token = kControlToken});
  if (sent.ok()) {
    ++controls_in_flight_;
  } else {
    Close(peer, sent);
  }
}

absl::Status ConnectionTable::SendData(Connection& connection, OutgoingMessage message) {
  absl::Status sent = transport_.Send(connection.peer, std::move(message));
  if (sent.ok()) {
    ++connection.data_in_flight;
  } else {
    Close(connection.peer, sent);
  }
  return sent;
}

void ConnectionTable::DataSent(PeerId peer) {
  if (const auto found = connections_.find(peer); found != connections_.end()) {
    --found->second->data_in_flight;
  }
}

void ConnectionTable::Close(PeerId peer, const absl::Status& why) {
  if (Connection* connection = Find(peer)) {
    Lose(*connection, why);
    transport_.Close(peer);
  }
}

void ConnectionTable::CloseAll(const absl::Status& why) {
  std::vector<PeerId> peers;
  for (const auto& [peer, connection] : connections_) {
    peers.push_back(peer);
  }
  for (const PeerId peer : peers) {
    Close(peer, why);
  }
}

void ConnectionTable::OnAccepted(PeerId peer) {
  Add(peer);
}

void ConnectionTable::OnClosed(PeerId peer, const absl::Status& why) {
  if (Connection* connection = Find(peer)) {
    Lose(*connection, why);
  }
  connections_.erase(peer);
  stats_.connections = static_cast<int>(connections_.size());
  PublishPeers();
}

void ConnectionTable::OnHeard(Connection& connection) {
  connection.last_heard = Now();
  connection.suspect = false;
  connection.in_doubt = false;
}

bool ConnectionTable::OnHello(Connection& connection, const wire::Hello& hello) {
  if (connection.outgoing || connection.state != ConnectionState::kGreeting) {
    return false;
  }
  if (hello.layout_fingerprint != options_.layout_fingerprint) {
    Refuse(connection, absl::FailedPreconditionError(absl::StrCat(
                           "layout fingerprint: ours ", ToHex(options_.layout_fingerprint),
                           ", theirs ", ToHex(hello.layout_fingerprint))));
    return true;
  }
  connection.instance = hello.instance;
  connection.state = ConnectionState::kReady;
  SendControl(connection.peer, MakeWelcome());
  return true;
}

bool ConnectionTable::OnWelcome(Connection& connection, const wire::Welcome& welcome) {
  if (!connection.outgoing || connection.state != ConnectionState::kGreeting) {
    return false;
  }
  // Whatever an earlier process at this address promised is void.
  for (auto& [peer, other] : connections_) {
    if (other->outgoing && other->state == ConnectionState::kReady &&
        other->route == connection.route && other->instance != welcome.instance) {
      Close(peer, absl::UnavailableError(
                      absl::StrCat("peer at ", other->route.address, " was restarted")));
    }
  }
  if (welcome.instance != connection.instance) {
    Close(connection.peer,
          absl::UnavailableError(absl::StrCat("peer at ", connection.route.address, " is instance ",
                                              welcome.instance.ToString(), ", not ",
                                              connection.instance.ToString())));
    return true;
  }
  if (welcome.layout_fingerprint != options_.layout_fingerprint) {
    Close(connection.peer, absl::FailedPreconditionError(absl::StrCat(
                               "layout fingerprint: ours ", ToHex(options_.layout_fingerprint),
                               ", theirs ", ToHex(welcome.layout_fingerprint))));
    return true;
  }
  pauses_.erase(Target(connection.route.address, connection.instance));
  if (const absl::Status chosen = ChooseWays(connection, welcome); !chosen.ok()) {
    Close(connection.peer, chosen);
    return true;
  }
  connection.state = ConnectionState::kReady;
  PublishPeers();
  for (const wire::Message& message : std::exchange(connection.after_greeting, {})) {
    SendControl(connection.peer, message);
  }
  observer_.OnReady(connection);
  return true;
}

bool ConnectionTable::Allows(std::uint16_t reads) const {
  const TransportPolicy& policy = options_.transport;
  if (reads == 0) {
    return policy.forced != TransportKind::kRdma && policy.forced != TransportKind::kMapped;
  }
  const std::vector<PoolReader*> readers = transport_.readers();
  return std::any_of(readers.begin(), readers.end(), [&](const PoolReader* reader) {
    return static_cast<std::uint16_t>(reader->kind()) == reads && policy.Allows(reader->kind()) &&
           !reader->Door().empty();
  });
}

void ConnectionTable::SetInUse(Connection& connection, std::uint16_t reads) {
  std::string transport = reads == 0 ? transport_.CarrierOf(connection.peer)
                                     : std::string(ToString(static_cast<TransportKind>(reads)));
  if (!connection.outgoing && connection.transport != transport) {
    connection.transport = std::move(transport);
    connection.reason = "chosen by the decode side";
    PublishPeers();
  }
}

// Once for each change: readers of the statistics share it.
void ConnectionTable::PublishPeers() {
  auto peers = std::make_shared<std::vector<PeerTransport>>();
  for (const auto& [peer, connection] : connections_) {
    if (connection->state == ConnectionState::kReady && !connection->transport.empty()) {
      peers->push_back({.address = connection->route.address,
                        .instance = connection->instance,
                        .transport = connection->transport,
                        .carrier = transport_.CarrierOf(peer),
                        .reason = connection->reason});
    }
  }
  stats_.peers = std::move(peers);
}

wire::Welcome ConnectionTable::MakeWelcome() const {
  wire::Welcome welcome{.instance = options_.instance,
                        .layout_fingerprint = options_.layout_fingerprint,
                        .pool_blocks = static_cast<std::uint32_t>(options_.pool.blocks)};
  welcome.messages = Allows(0) ? 1 : 0;
  for (const PoolReader* reader : transport_.readers()) {
    std::string door = options_.transport.Allows(reader->kind()) ? reader->Door() : std::string();
    if (!door.empty()) {
      welcome.doors.push_back({.kind = reader->kind(), .description = std::move(door)});
    }
  }
  return welcome;
}

absl::Status ConnectionTable::ChooseWays(Connection& connection, const wire::Welcome& welcome) {
  connection.pool_blocks = welcome.pool_blocks;
  const std::uint64_t pool_bytes =
      std::uint64_t{welcome.pool_blocks} * options_.pool.layout.block_bytes();
  std::vector<TransportCandidate> candidates;
  std::vector<Way> known;
  for (const TransportKind kind : {TransportKind::kRdma, TransportKind::kMapped}) {
    if (const std::string* why = options_.transport.WhyAbsent(kind)) {
      candidates.push_back({kind, absl::FailedPreconditionError(*why)});
    }
  }
  for (PoolReader* reader : transport_.readers()) {
    if (!options_.transport.Allows(reader->kind()) ||
        options_.transport.WhyAbsent(reader->kind()) != nullptr) {
      continue;
    }
    if ((reader->kind() == TransportKind::kRdma) !=
        (connection.route.kind == TransportKind::kRdma)) {
      candidates.push_back(
          {reader->kind(), absl::FailedPreconditionError("not over this connection")});
      continue;
    }
    const auto door =
        std::find_if(welcome.doors.begin(), welcome.doors.end(),
                     [&](const wire::Door& offered) { return offered.kind == reader->kind(); });
    known.push_back({reader->kind(), reader});
    candidates.push_back(
        {reader->kind(), door == welcome.doors.end()
                             ? absl::FailedPreconditionError("the peer does not offer its pool")
                             : reader->Open(connection.peer, door->description, pool_bytes)});
  }
  if (connection.route.kind != TransportKind::kRdma) {
    known.push_back({connection.route.kind, nullptr});
    candidates.push_back(
        {connection.route.kind, welcome.messages != 0
                                    ? absl::OkStatus()
                                    : absl::FailedPreconditionError("the peer does not allow it")});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.kind < b.kind; });
  const absl::StatusOr<TransportChoice> choice = ChooseTransport(options_.transport, candidates);
  if (!choice.ok()) {
    return choice.status();
  }
  for (const TransportKind kind : choice->kinds) {
    connection.ways.push_back(*std::find_if(known.begin(), known.end(),
                                            [&](const Way& way) { return way.kind == kind; }));
  }
  connection.transport = connection.ways[0].reader != nullptr
                             ? std::string(ToString(connection.ways[0].kind))
                             : transport_.CarrierOf(connection.peer);
  connection.reason = choice->reason;
  LogEvent(LogLevel::kInfo, "peer.connected",
           {{"address", connection.route.address},
            {"instance", connection.instance.ToString()},
            {"transport", connection.transport},
            {"carrier", transport_.CarrierOf(connection.peer)},
            {"reason", connection.reason}});
  return absl::OkStatus();
}

void ConnectionTable::OnPing(const Connection& connection, const wire::Ping& ping) {
  SendControl(connection.peer, wire::Pong{.sequence = ping.sequence});
}

void ConnectionTable::Tick(TimePoint now) {
  std::vector<PeerId> peers;
  for (const auto& [peer, connection] : connections_) {
    peers.push_back(peer);
  }
  for (const PeerId peer : peers) {
    Connection* connection = Find(peer);
    if (connection == nullptr) {
      continue;
    }
    if (connection->state == ConnectionState::kGreeting) {
      if (now >= connection->greeting_deadline) {
        Close(peer, absl::UnavailableError(absl::StrCat("no welcome from the peer at ",
                                                        connection->route.address, " in time")));
      }
    } else if (connection->open_handoffs > 0 || connection->in_doubt) {
      // In doubt it is watched until it has said something, however soon a handoff gives up: else
      // the next one would trust a connection that has long been forgotten on the way.
      CheckSilence(*connection, now);
    }
  }
  absl::erase_if(pauses_, [&](const auto& entry) {
    return now > entry.second.until + options_.times.reconnect_max;
  });
}

bool ConnectionTable::greeting() const {
  return std::any_of(connections_.begin(), connections_.end(), [](const auto& entry) {
    return entry.second->state == ConnectionState::kGreeting;
  });
}

Connection& ConnectionTable::Add(PeerId peer) {
  auto connection = std::make_unique<Connection>();
  connection->peer = peer;
  connection->last_heard = Now();
  connection->greeting_deadline = connection->last_heard + options_.times.connect;
  Connection& added = *connection;
  connections_[peer] = std::move(connection);
  stats_.connections = static_cast<int>(connections_.size());
  return added;
}

void ConnectionTable::Lose(Connection& connection, const absl::Status& why) {
  if (connection.outgoing && connection.state == ConnectionState::kGreeting) {
    Pause& pause = pauses_[Target(connection.route.address, connection.instance)];
    pause.length =
        std::clamp(pause.length * 2, options_.times.reconnect_min, options_.times.reconnect_max);
    pause.until = Now() + pause.length;
  }
  LogEvent(connection.open_handoffs > 0 ? LogLevel::kWarn : LogLevel::kInfo, "peer.lost",
           {{"address", connection.route.address},
            {"instance", connection.instance.ToString()},
            {"open_handoffs", connection.open_handoffs},
            {"why", why}});
  connection.state = ConnectionState::kClosing;
  ++stats_.peers_lost;
  losses_.push_back({connection.peer, why});
}

// The refused side closes, once it has read why; the greeting deadline closes if it does not.
void ConnectionTable::Refuse(Connection& connection, const absl::Status& why) {
  LogEvent(LogLevel::kWarn, "peer.refused", {{"why", why}});
  SendControl(connection.peer, wire::Error{.code = static_cast<std::uint16_t>(why.code()),
                                           .text = std::string(why.message())});
}

void ConnectionTable::CheckSilence(Connection& connection, TimePoint now) {
  const Duration silence = now - connection.last_heard;
  if (silence >= options_.times.dead) {
    Close(connection.peer,
          absl::UnavailableError(absl::StrCat(
              "peer silent for ",
              std::chrono::duration_cast<std::chrono::milliseconds>(silence).count(), " ms")));
    return;
  }
  if (silence >= options_.times.suspect && !connection.suspect) {
    connection.suspect = true;
    LogEvent(LogLevel::kWarn, "peer.suspect", {{"instance", connection.instance.ToString()}});
  }
  if (now >= connection.next_ping) {
    connection.next_ping = now + options_.times.heartbeat;
    std::vector<HandoffId> leases = observer_.LeasesToRenew(connection.peer);
    do {
      const auto count = std::min<std::size_t>(leases.size(), wire::kMaxRenewals);
      SendControl(
          connection.peer,
          wire::Ping{.sequence = next_ping_++,
                     .renewed = {leases.end() - static_cast<std::ptrdiff_t>(count), leases.end()}});
      leases.resize(leases.size() - count);
    } while (!leases.empty());
  }
}

}  // namespace baton
