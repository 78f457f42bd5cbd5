#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvtransfer/transfer_types.h"
#include "kvtransfer/transport.h"
#include "kvtransfer/transport_choice.h"
#include "kvtransfer/wire.h"

namespace baton {

enum class ConnectionState : std::uint8_t {
  kGreeting,  // no welcome yet
  kReady,
  kClosing,  // torn down here or there; memory may still be in use
};

// How blocks may come over a connection.
struct Way {
  TransportKind kind = TransportKind::kTcp;
  PoolReader* reader = nullptr;  // the transport's; null: in DATA messages
};

struct Connection {
  PeerId peer;
  bool outgoing = false;
  ConnectionState state = ConnectionState::kGreeting;
  Route route;          // outgoing only
  InstanceId instance;  // outgoing: the one to reach; incoming: from its hello
  TimePoint greeting_deadline;
  TimePoint last_heard;
  TimePoint next_ping;
  bool suspect = false;
  bool in_doubt = false;                      // nothing heard since a handoff first depended on it
  int open_handoffs = 0;                      // heartbeats run while there is one
  int data_in_flight = 0;                     // DATA messages the transport has not let go of
  std::vector<wire::Message> after_greeting;  // outgoing: held back until the peer's welcome
  // Outgoing, from the peer's welcome on.
  std::vector<Way> ways;  // most wanted first, never empty
  std::uint32_t pool_blocks = 0;
  // What blocks come or go by, once that is known, and why.
  std::string transport;
  std::string reason;
};

// Who talks to us and whom we talk to: greetings, heartbeats, the death of peers.
//
// A peer is one run of one process, so outgoing connections are found by address and instance: a
// process restarted at the same address is another peer, and its welcome voids what is left of the
// old one.
//
// Not thread-safe: used only by the transfer thread.
class ConnectionTable {
 public:
  // What a new heartbeat needs and what became of connections.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnReady(Connection& connection) = 0;
    virtual std::vector<HandoffId> LeasesToRenew(PeerId peer) = 0;
  };
  struct Loss {
    PeerId peer;
    absl::Status why;
  };

  // All four outlive the table.
  ConnectionTable(const TransferOptions& options,
                  Transport& transport,
                  TransferStats& stats,
                  Observer& observer);

  // The connection to `instance` by `route`, made now if there is none; it may still be greeting,
  // for `patience` at most. UNAVAILABLE right after a failed attempt.
  absl::StatusOr<Connection*> Reach(const Route& route, InstanceId instance, Duration patience);
  // nullptr when unknown or closing.
  Connection* Find(PeerId peer);

  // A handoff begins or ends to depend on the peer.
  void AddHandoff(Connection& connection);
  void RemoveHandoff(PeerId peer);

  // Sending to a peer that is gone is no error: the loss is reported anyway. What is said to a peer
  // before its welcome waits for it: UCX lets messages sent during wire-up overtake the hello, and
  // the other side drops what comes before that.
  void SendControl(PeerId peer, const wire::Message& message);
  absl::Status SendData(Connection& connection, OutgoingMessage message);
  void DataSent(PeerId peer);
  bool SendsChecksums(const Connection& connection, std::size_t payload_bytes) const {
    return transport_.SendsChecksums(connection.peer, payload_bytes);
  }

  // Whether the peer of a connection may fetch in this way: 0 for DATA, or the kind of a reader.
  bool Allows(std::uint16_t reads) const;
  // Incoming: what the peer fetches by.
  void SetInUse(Connection& connection, std::uint16_t reads);

  void Close(PeerId peer, const absl::Status& why);
  void CloseAll(const absl::Status& why);
  // Connections lost since the last call, each once. Their handoffs learn of it from the caller.
  std::vector<Loss> TakeLosses() { return std::exchange(losses_, {}); }

  void OnAccepted(PeerId peer);
  void OnClosed(PeerId peer, const absl::Status& why);
  void OnHeard(Connection& connection);
  // False when the message has no place in the conversation.
  bool OnHello(Connection& connection, const wire::Hello& hello);
  bool OnWelcome(Connection& connection, const wire::Welcome& welcome);
  void OnPing(const Connection& connection, const wire::Ping& ping);

  // Pings, greeting deadlines, silent peers.
  void Tick(TimePoint now);

  bool empty() const { return connections_.empty(); }
  bool greeting() const;
  int controls_in_flight() const { return controls_in_flight_; }
  void ControlSent() { --controls_in_flight_; }

 private:
  struct Pause {
    Duration length{};
    TimePoint until;
  };
  using Target = std::pair<std::string, InstanceId>;

  TimePoint Now() const { return options_.clock->Now(); }
  Connection& Add(PeerId peer);
  // For TransferStats.
  void PublishPeers();
  wire::Welcome MakeWelcome() const;
  // What the peer of a connection offers for blocks, and what of it is used.
  absl::Status ChooseWays(Connection& connection, const wire::Welcome& welcome);
  void Lose(Connection& connection, const absl::Status& why);
  void Refuse(Connection& connection, const absl::Status& why);
  void CheckSilence(Connection& connection, TimePoint now);

  const TransferOptions& options_;
  Transport& transport_;
  TransferStats& stats_;
  Observer& observer_;
  absl::flat_hash_map<PeerId, std::unique_ptr<Connection>> connections_;
  absl::flat_hash_map<Target, Pause> pauses_;  // after failed connects
  std::vector<Loss> losses_;
  std::uint64_t next_ping_ = 1;
  int controls_in_flight_ = 0;
};

// The token of messages nobody waits for.
inline constexpr TransferToken kControlToken{0};

}  // namespace baton
