#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvtransfer/transport.h"
#include "kvtransfer/wire.h"

namespace baton::faulty {

enum class FaultAction {
  kDelay,  // goes out `rounds` calls of Progress later; what is sent meanwhile overtakes it
  kDrop,   // is reported as sent
  kDuplicate,
  kTruncate,  // loses its last byte
  kFlip,      // one bit in the middle of the payload, or of the header when there is none
  kKill,      // the connection is closed instead
  kMute,      // this and everything later is dropped: the peer looks stopped
};

// What happens to the outgoing messages number [first, first + count) of those of `type`, of all
// when absent.
struct Fault {
  FaultAction action = FaultAction::kDrop;
  std::optional<wire::MessageType> type;
  int first = 0;
  int count = 1;
  int rounds = 20;  // kDelay only
  // The reads of a peer's pool instead of messages: kFlip damages what was read, kKill closes the
  // connection, any other action makes the read fail.
  bool of_reads = false;
};

// Counts what was given to be sent. Thread-safe.
struct FaultLog {
  std::atomic<int> messages = 0;
  std::atomic<std::size_t> parts = 0;         // of payloads: what a transport gets as an IOV list
  std::atomic<std::size_t> header_bytes = 0;  // of all messages
  std::atomic<int> injected = 0;
  std::atomic<std::int64_t> sending_ns = 0;  // in the other transport's Send
};

// Wraps another transport and damages what is sent through it, the same way in every run with the
// same messages. A payload must be in host memory: staging goes around this, not inside. `log` is
// shared by the transport and whoever watches it.
TransportFactory MakeTransport(TransportFactory inner,
                               std::vector<Fault> faults,
                               std::shared_ptr<FaultLog> log = std::make_shared<FaultLog>());

}  // namespace baton::faulty
