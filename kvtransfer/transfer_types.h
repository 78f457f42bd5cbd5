#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/kv_layout.h"
#include "common/random_id.h"
#include "common/sha256.h"
#include "common/strong_id.h"
#include "kvtransfer/handoff_state.h"
#include "kvtransfer/memory_kind.h"
#include "kvtransfer/transport_choice.h"

namespace baton {

// Keeps a set of blocks alive. The worker makes one from the engine's lease; TransferService drops
// it, on the transfer thread, only when the transport can no longer touch the memory.
class RegionPin {
 public:
  virtual ~RegionPin() = default;
};

// The KV pool of this process: `[blocks, layout.layers, layout.layer_bytes]`. Not owned; outlives
// the service.
//
// A pool in device memory needs a transport that can move it, staged where it cannot do so itself
// (`staged/`). No events cross this border: a layer is marked ready when its kernels have finished,
// and a fetch has landed when its last copy has.
struct PoolRegion {
  std::byte* base = nullptr;
  KvLayout layout;
  int blocks = 0;
  MemoryKind kind = MemoryKind::kHost;
};

struct TransferTimes {
  // Between peers with an open handoff.
  Duration heartbeat = std::chrono::milliseconds(200);
  // Silence after which a peer is logged as suspect, and after which its connection is closed.
  Duration suspect = std::chrono::milliseconds(600);
  Duration dead = std::chrono::seconds(1);
  // Offered blocks stay pinned this long after a renewal.
  Duration lease = std::chrono::seconds(5);
  // From connecting to the peer's welcome; of another route to the same peer after the first has
  // failed.
  Duration connect = std::chrono::seconds(1);
  Duration connect_again = std::chrono::milliseconds(500);
  // When the memory of an ended handoff is in use for longer, its connection is closed.
  Duration let_go = std::chrono::milliseconds(600);
  // Pause after a failed connect, doubled each time up to the second.
  Duration reconnect_min = std::chrono::milliseconds(50);
  Duration reconnect_max = std::chrono::seconds(2);
};

struct TransferOptions {
  InstanceId instance;          // this run of this process
  Digest layout_fingerprint{};  // peers with another one are refused
  PoolRegion pool;
  TransferTimes times;
  TransportPolicy transport;
  // Off only to measure what they cost, at both sides: damaged pieces are then taken for good ones.
  bool checksums = true;
  std::size_t message_bytes = 3 << 20;  // of one DATA message: 2 to 4 MB is what TCP wants
  int messages_in_flight = 8;           // DATA messages under way for each peer; 8 reach full speed
  std::size_t credit_bytes = 32 << 20;  // under way for each handoff, told to the prefill side
  std::size_t mailbox_capacity = 1 << 16;  // commands waiting for the transfer thread
  std::size_t parked_fetches = 1024;       // fetches that arrived before their offer
  const Clock* clock = &Clock::System();
};

struct OfferStats {
  std::size_t bytes_sent = 0;
  int messages_sent = 0;
  int blocks_wanted = 0;  // by the last fetch
};

// Called on the transfer thread, which must not be held up: implementations only post.
class OfferSink {
 public:
  virtual ~OfferSink() = default;
  // Exactly once for each accepted offer, after its pin is dropped. `end` is one of the ends; `why`
  // is OK for kReleased.
  virtual void OnEnd(HandoffId id,
                     PrefillHandoffState end,
                     const absl::Status& why,
                     const OfferStats& stats) = 0;
};

// Prefill side: the blocks that hold the KV values of one prompt, or will once computed.
struct OfferRequest {
  HandoffId id;
  std::uint64_t epoch = 0;
  InstanceId peer;              // the only process that may fetch them
  std::vector<BlockId> blocks;  // in prompt order; "source index" is the place in here
  std::unique_ptr<RegionPin> pin;
  OfferSink* sink = nullptr;  // not owned; outlives OnEnd
};

// Layers [first_layer, first_layer + layer_count) of source blocks [first_block, first_block +
// block_count) are final.
struct ReadyRange {
  int first_block = 0;
  int block_count = 0;
  int first_layer = 0;
  int layer_count = 0;
};

struct FetchStats {
  std::size_t bytes = 0;
  int messages = 0;
  int refetched_blocks = 0;
  int moves = 0;         // to another transport, after one had failed
  TimePoint requested;   // when the fetch was sent
  TimePoint first_byte;  // when the first piece was announced
  TimePoint last_byte;   // when the last piece was in place and verified
  // Of this, while at least one piece was on its way: announced, and not yet in place. Without the
  // waits for pieces that the peer still computes. A carrier that announces a message when all of
  // it is here (grpc, inproc) shows the copy to its place only.
  Duration receiving{};
  // What carried it last: "rdma" or "mapped" when read, else the messages' carrier: "tcp",
  // "rc_verbs", "grpc", "inproc".
  std::string transport;
};

// Called on the transfer thread, which must not be held up: implementations only post. Exactly one
// end for each accepted fetch, at the latest at its deadline.
class FetchSink {
 public:
  virtual ~FetchSink() = default;
  // Bytes that have come so far, when there are more of them; not after the event, and not for
  // each.
  virtual void OnProgress(HandoffId /*id*/, std::size_t /*bytes*/) {}
  // Every piece is in place and its checksum verified; the pin is dropped.
  virtual void OnLanded(HandoffId id, const FetchStats& stats) = 0;
  // `whole_blocks`: source indices of blocks that are complete and verified, ascending; the rest is
  // undefined bytes. The pin may live on until the transport has let go.
  virtual void OnFailed(HandoffId id,
                        const absl::Status& why,
                        const std::vector<int>& whole_blocks) = 0;
};

struct BlockMapping {
  int source_index = 0;  // place in the offer's `blocks`
  BlockId destination;   // block of this process's pool
};

// Decode side: which blocks of an offer are wanted and where they go.
struct FetchRequest {
  HandoffId id;
  std::uint64_t epoch = 0;
  std::string address;  // what the peer's TransferService::address() says, or one of its parts
  InstanceId peer;
  std::vector<BlockMapping> blocks;  // at least one; no source index and no destination twice
  std::unique_ptr<RegionPin> pin;
  TimePoint deadline;
  FetchSink* sink = nullptr;  // not owned; outlives the event
};

// Why a message from a peer was not acted on.
enum class DropReason : std::uint8_t {
  kMalformed,       // does not decode
  kUnexpected,      // decodes, but has no place in the conversation
  kUnknownHandoff,  // never heard of it, or over
  kWrongEpoch,
  kWrongPeer,  // the handoff is another instance's
  kBadBlocks,  // out of range, not wanted, or twice in one message
  kBadLayers,
  kBadLength,
  kReplayed,  // a piece that has landed or is arriving
  kChecksum,
};
inline constexpr int kDropReasons = 10;
std::string_view ToString(DropReason reason);

// What blocks to or from a connected peer travel by.
struct PeerTransport {
  std::string address;  // empty: the peer has connected to us
  InstanceId instance;
  std::string transport;  // "rdma", "mapped", or the carrier of messages
  std::string carrier;    // of control messages
  std::string reason;     // of the choice
};

// Snapshot of the service's gauges and counters since start.
struct TransferStats {
  int connections = 0;
  int offers = 0;          // open, prefill side
  int fetches = 0;         // open, decode side
  int parked_fetches = 0;  // waiting for their offer
  int receiving = 0;       // messages arriving into blocks at this moment
  // Of ended handoffs whose memory the transport may still touch, both sides.
  int quarantined_blocks = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t messages_sent = 0;      // DATA only
  std::uint64_t messages_received = 0;  // DATA only
  std::uint64_t refetched_blocks = 0;
  std::uint64_t connects = 0;  // attempts
  std::uint64_t peers_lost = 0;
  std::uint64_t moves = 0;                // of a handoff to another transport
  std::array<std::uint64_t, 4> landed{};  // fetches, in the order of kTransportKinds
  Duration thread_time{};                 // processor time of the transfer thread
  std::shared_ptr<const std::vector<PeerTransport>> peers;  // shared by snapshots; may be null
  std::array<std::uint64_t, kDropReasons> dropped{};        // by DropReason

  std::uint64_t dropped_for(DropReason reason) const {
    return dropped[static_cast<std::size_t>(reason)];
  }
};

}  // namespace baton
