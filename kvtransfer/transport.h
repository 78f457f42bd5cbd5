#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/strong_id.h"
#include "kvtransfer/memory_kind.h"
#include "kvtransfer/transport_kind.h"

namespace baton {

struct MemoryRegion {
  std::byte* base = nullptr;  // not owned; outlives the transport
  std::size_t size_bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
};

// One connection, made or accepted. Never used again for another one in this process, so that
// several transports can share a handler.
using PeerId = StrongId<struct PeerIdTag, std::uint64_t>;
PeerId MakePeerId();

// The caller's name for one message on its way, given back when the transport has let go of its
// memory.
using TransferToken = StrongId<struct TransferTokenTag, std::uint64_t>;

// Longest header of a message without and with a payload.
inline constexpr std::size_t kMaxControlBytes = std::size_t{64} * 1024;
inline constexpr std::size_t kMaxDataHeaderBytes = std::size_t{4} * 1024;

// The parts of a payload in order, not owned.
using ConstParts = std::span<const std::span<const std::byte>>;
using MutableParts = std::span<const std::span<std::byte>>;

// Appends a part; one that goes on in memory where the last one ends becomes part of it.
template <typename Byte>
void AppendPart(std::vector<std::span<Byte>>& parts, std::span<Byte> part) {
  if (!parts.empty() && parts.back().data() + parts.back().size() == part.data()) {
    parts.back() = {parts.back().data(), parts.back().size() + part.size()};
  } else {
    parts.push_back(part);
  }
}

struct OutgoingMessage {
  std::string header;  // moved into the transport
  // In order; the memory stays the caller's until OnSent.
  std::vector<std::span<const std::byte>> payload;
  TransferToken token;
  // The transport takes the payload's checksum as it sends and tells it to the peer's transport,
  // which says it in CopiedChecksum::sent. Only where Transport::SendsChecksums.
  bool send_checksum = false;
  // Only with a payload in device memory, of which the host can take no checksum: makes the header,
  // given the payload's bytes in host memory. Whoever copies them there calls it, once; no
  // transport that moves host memory ever meets one.
  std::function<std::string(ConstParts payload)> seal;
};

// CRC32C of the first `bytes` of a payload that a transport has copied to its destinations.
struct CopiedChecksum {
  std::uint32_t crc32c = 0;
  std::size_t bytes = 0;
  // Of the whole payload, as the peer's transport read it; only of messages with `send_checksum`.
  std::optional<std::uint32_t> sent;
};

// What becomes of the payload of an arriving message.
struct ReceivePlan {
  bool accept = false;  // false: the payload is dropped unread
  // Accepted, but it waits, at the sender where the transport can, until Transport::Place.
  bool later = false;
  // In order; together exactly the payload's length. Empty when `later`.
  std::vector<std::span<std::byte>> destinations;
  TransferToken token;
  // Only with destinations in device memory: whether the payload is intact, given its bytes in host
  // memory. Whoever copies them from there to the destinations calls it before, once.
  std::function<bool(ConstParts payload)> verify;
  // May be null. A transport that copies the payload to the destinations itself, in order, may add
  // to it what it has just copied: a second pass later would have to fetch the bytes from memory
  // again. Whoever made the plan takes the checksum of the destinations if `bytes` is not all.
  // Shared, because either side may be done with it first.
  std::shared_ptr<CopiedChecksum> copied;
};

// What a transport reports. Called on the transfer thread, from Transport::Progress only; may call
// the transport.
class TransportHandler {
 public:
  virtual ~TransportHandler() = default;

  virtual void OnAccepted(PeerId peer) = 0;
  // A part of a message has arrived, of which there is nothing else to say yet. On a slow network
  // that is all that tells of a living peer for a while: what else it says waits behind its data.
  virtual void OnHeard(PeerId peer) = 0;
  // A message without a payload.
  virtual void OnControl(PeerId peer, std::string_view header) = 0;
  // A message with a payload of `payload_bytes`, which has not been placed anywhere yet.
  virtual ReceivePlan OnData(PeerId peer, std::string_view header, std::size_t payload_bytes) = 0;
  // The destinations of an accepted plan, or of a read, are filled (OK) or will not be written any
  // more (an error; DATA_LOSS when `verify` said no).
  virtual void OnReceived(PeerId peer, TransferToken token, const absl::Status& status) = 0;
  // The memory of a message that Send took will not be read any more. OK says no more than that:
  // whether the peer kept the bytes, only the peer can say.
  virtual void OnSent(PeerId peer, TransferToken token, const absl::Status& status) = 0;
  // Last report about this peer, exactly once, whoever ended the connection: every OnSent and
  // OnReceived has been called, and the transport touches no memory on behalf of this peer again.
  virtual void OnClosed(PeerId peer, const absl::Status& why) = 0;
};

// A range of a peer's pool and where it goes here.
struct PoolRange {
  std::uint64_t offset = 0;  // bytes from the start of the pool
  std::span<std::byte> destination;
};

struct PoolRead {
  std::vector<PoolRange> ranges;
  TransferToken token;
  std::shared_ptr<CopiedChecksum> copied;  // as in a ReceivePlan
};

// Longest description of a pool.
inline constexpr std::size_t kMaxDoorBytes = 1024;

// Reading a peer's pool without the peer's help: what a transport may be able to do beside
// messages. Reads only: nobody writes a pool but its owner.
//
// Not thread-safe: part of a transport, and used like it.
class PoolReader {
 public:
  virtual ~PoolReader() = default;

  virtual TransportKind kind() const = 0;

  // What a peer needs to read the region registered here; opaque to all but its Open. Empty: this
  // process only reads. At most kMaxDoorBytes.
  virtual std::string Door() const = 0;

  // Makes the pool that `door` describes readable until the connection is closed.
  // FAILED_PRECONDITION says why it cannot be; the door comes from the peer and may be anything.
  virtual absl::Status Open(PeerId peer, std::string_view door, std::uint64_t pool_bytes) = 0;

  // OnReceived follows exactly when OK is returned, at the latest when the connection is closed.
  // REQUIRES: the peer is open, and the ranges lie in its pool.
  virtual absl::Status Read(PeerId peer, PoolRead read) = 0;
};

// Messages between two processes, and nothing about what they mean: the seam under TransferService.
//
// Completion means: the transport has reported it, or the connection is closed and drained. Only
// then may memory be reused.
//
// Not thread-safe: made, used and destroyed by the transfer thread. Destruction forces every
// connection down; after it no memory is touched, and nothing is reported.
class Transport {
 public:
  virtual ~Transport() = default;

  // Where peers connect to, numeric "host:port".
  virtual std::string address() const = 0;

  // Prepares memory that payloads come from or go to. FAILED_PRECONDITION when this transport
  // cannot move `kind`.
  virtual absl::Status RegisterRegion(const MemoryRegion& region) = 0;

  // Starts a connection and returns at once; the peer may be sent to right away. When nobody
  // answers with an error there is no report: deadlines are the caller's.
  virtual absl::StatusOr<PeerId> Connect(const std::string& address) = 0;

  // Takes a message; OnSent follows exactly when OK is returned. Messages without a payload arrive
  // in order.
  virtual absl::Status Send(PeerId peer, OutgoingMessage message) = 0;

  // Whether a message may ask for `send_checksum`. A checksum taken just before the bytes leave
  // costs half of one taken earlier, since they need not be fetched from memory twice.
  virtual bool SendsChecksums(PeerId /*peer*/, std::size_t /*payload_bytes*/) const {
    return false;
  }

  // Names the destinations of a plan that said `later`; OnReceived follows, from Progress. Nothing
  // happens when the payload is gone with its connection: OnReceived has said so.
  virtual void Place(PeerId peer,
                     TransferToken token,
                     std::vector<std::span<std::byte>> destinations) = 0;

  // Tears the connection down without waiting for anything in flight; OnClosed follows.
  virtual void Close(PeerId peer) = 0;

  // Does what can be done without waiting; false when there was nothing.
  virtual bool Progress() = 0;

  // A descriptor that becomes readable when Progress has work again; nullopt: there is work now, do
  // not sleep.
  virtual std::optional<int> PrepareToSleep() = 0;

  // Whether so much is arriving that there will be work after a short sleep, and it waits at no
  // cost meanwhile: then it is cheaper not to be woken for it.
  virtual bool Streaming() const { return false; }

  // What carries the messages of this peer: "tcp", "rc_verbs", "inproc".
  virtual std::string CarrierOf(PeerId peer) const = 0;

  // Most wanted first; they live as long as the transport.
  virtual std::vector<PoolReader*> readers() { return {}; }
};

// Makes a transport on the thread that will use it. `handler` outlives the transport.
using TransportFactory =
    std::function<absl::StatusOr<std::unique_ptr<Transport>>(TransportHandler& handler)>;

}  // namespace baton
