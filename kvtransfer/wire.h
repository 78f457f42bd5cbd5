#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/random_id.h"
#include "common/sha256.h"
#include "kvtransfer/transport_kind.h"

// What two TransferServices say to each other. Every message starts with 12 bytes, integers
// little-endian:
//
//   offset  0  4  magic "BKVT"
//           4  2  version of the protocol
//           6  2  MessageType
//           8  4  bytes that follow
//
// then its fields in the order of the structs below; a vector or text is its uint32 count and its
// elements.
namespace baton::wire {

inline constexpr std::uint16_t kVersion = 3;
inline constexpr std::size_t kFrameBytes = 12;

// Never renumber.
enum class MessageType : std::uint16_t {
  kHello = 1,
  kWelcome = 2,
  kFetch = 3,
  kData = 4,
  kComplete = 5,
  kAck = 6,
  kCancel = 7,
  kError = 8,
  kPing = 9,
  kPong = 10,
  kReady = 11,
  kReleased = 12,
};

inline constexpr std::uint32_t kMaxBlockRuns = 4096;
inline constexpr std::uint32_t kMaxDataBlocks = 512;
inline constexpr std::uint32_t kMaxErrorText = 1024;
inline constexpr std::uint32_t kMaxRenewals = 2048;
inline constexpr std::uint32_t kMaxDoors = 4;

// First message of the side that connects.
struct Hello {
  static constexpr MessageType kType = MessageType::kHello;
  InstanceId instance;
  Digest layout_fingerprint{};
  friend bool operator==(const Hello&, const Hello&) = default;
};

// How the pool of the side that says this can be read; see PoolReader.
struct Door {
  TransportKind kind{};  // may be one that we do not know
  std::string description;
  friend bool operator==(const Door&, const Door&) = default;
};

// Its answer; the connection may be used from here on.
struct Welcome {
  static constexpr MessageType kType = MessageType::kWelcome;
  InstanceId instance;
  Digest layout_fingerprint{};
  std::uint32_t pool_blocks = 0;
  std::uint16_t messages = 1;  // 1: blocks may be asked for in DATA messages
  std::vector<Door> doors;
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

// Layers [first_layer, first_layer + layer_count) of source blocks [first, first + count).
struct BlockRun {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint16_t first_layer = 0;
  std::uint16_t layer_count = 0;
  friend bool operator==(const BlockRun&, const BlockRun&) = default;
};

// Decode side: stands until all of it has been sent, for layers that are computed later too. A
// higher round asks again for what did not arrive.
struct Fetch {
  static constexpr MessageType kType = MessageType::kFetch;
  HandoffId handoff;
  std::uint64_t epoch = 0;
  std::uint32_t round = 0;         // from 1
  std::uint64_t credit_bytes = 0;  // most bytes under way
  std::uint16_t reads = 0;         // the TransportKind by which Ready pieces will be read; 0: DATA
  std::vector<BlockRun> blocks;    // no piece twice
  friend bool operator==(const Fetch&, const Fetch&) = default;
};

// Prefill side: header of a payload of `blocks.size()` pieces, each the layers [first_layer,
// first_layer + layer_count) of one block.
struct Data {
  static constexpr MessageType kType = MessageType::kData;
  HandoffId handoff;
  std::uint64_t epoch = 0;
  std::uint32_t round = 0;
  std::uint32_t sequence = 0;  // from 0 in each round
  std::uint16_t first_layer = 0;
  std::uint16_t layer_count = 0;
  std::uint32_t crc32c = 0;            // of the payload, unless `checksum_follows`
  std::uint16_t checksum_follows = 0;  // 1: the transport says it, having sent the payload
  std::vector<std::uint32_t> blocks;   // source indices, strictly ascending
  friend bool operator==(const Data&, const Data&) = default;
};

// A block of an offer and its place in the pool of the side that says this.
struct PlacedBlock {
  std::uint32_t source = 0;
  std::uint32_t place = 0;
  friend bool operator==(const PlacedBlock&, const PlacedBlock&) = default;
};

// Prefill side: what Data says, in the place of sending it: the decode side may read these pieces.
struct Ready {
  static constexpr MessageType kType = MessageType::kReady;
  HandoffId handoff;
  std::uint64_t epoch = 0;
  std::uint32_t round = 0;
  std::uint32_t sequence = 0;  // from 0 in each round
  std::uint16_t first_layer = 0;
  std::uint16_t layer_count = 0;
  std::uint32_t crc32c = 0;         // of the pieces, one after the other
  std::vector<PlacedBlock> blocks;  // sources strictly ascending
  friend bool operator==(const Ready&, const Ready&) = default;
};

// Prefill side: everything asked for in this round has been announced, or sent and let go.
struct Complete {
  static constexpr MessageType kType = MessageType::kComplete;
  HandoffId handoff;
  std::uint64_t epoch = 0;
  std::uint32_t round = 0;
  std::uint32_t messages = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Complete&, const Complete&) = default;
};

// Decode side: everything is in place and verified.
struct Ack {
  static constexpr MessageType kType = MessageType::kAck;
  HandoffId handoff;
  std::uint64_t epoch = 0;
  std::uint16_t confirm = 0;  // 1: answer with Released or Error
  friend bool operator==(const Ack&, const Ack&) = default;
};

// Prefill side: the blocks stayed as they were announced until the Ack, which came after the last
// read. Said again for each Ack that asks.
struct Released {
  static constexpr MessageType kType = MessageType::kReleased;
  HandoffId handoff;
  std::uint64_t epoch = 0;
  friend bool operator==(const Released&, const Released&) = default;
};

// Decode side: the blocks are not wanted any more.
struct Cancel {
  static constexpr MessageType kType = MessageType::kCancel;
  HandoffId handoff;
  std::uint64_t epoch = 0;
  std::uint16_t code = 0;  // absl::StatusCode
  friend bool operator==(const Cancel&, const Cancel&) = default;
};

// Prefill side: the handoff has failed; with an all-zero handoff, the connection is refused.
struct Error {
  static constexpr MessageType kType = MessageType::kError;
  HandoffId handoff;
  std::uint64_t epoch = 0;
  std::uint16_t code = 0;  // absl::StatusCode
  std::string text;
  friend bool operator==(const Error&, const Error&) = default;
};

// Either side, every heartbeat while a handoff is open between the two; answered by Pong at once.
struct Ping {
  static constexpr MessageType kType = MessageType::kPing;
  std::uint64_t sequence = 0;
  std::vector<HandoffId> renewed;  // leases to prolong
  friend bool operator==(const Ping&, const Ping&) = default;
};

struct Pong {
  static constexpr MessageType kType = MessageType::kPong;
  std::uint64_t sequence = 0;
  friend bool operator==(const Pong&, const Pong&) = default;
};

using Message = std::
    variant<Hello, Welcome, Fetch, Data, Ready, Complete, Ack, Released, Cancel, Error, Ping, Pong>;

// REQUIRES: counts within the limits above.
std::string Encode(const Message& message);

// INVALID_ARGUMENT unless the bytes are exactly one message within the limits; FAILED_PRECONDITION
// naming both versions when the peer speaks another one.
absl::StatusOr<Message> Decode(std::string_view bytes);

// What an Error says, as a status. A code from a peer may be any number: what is no error code
// becomes UNKNOWN.
absl::Status ToStatus(const Error& error);

}  // namespace baton::wire
