#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "kvtransfer/staged/staging_copier.h"
#include "kvtransfer/transport.h"

namespace baton::staged {

struct StagingOptions {
  // 2 to 4 MB, what TCP wants in one message; as much as TransferOptions::message_bytes, so that a
  // message fills one slot. Longer messages take several.
  std::size_t slot_bytes = 3 << 20;
  // Eight messages under way reach full speed. Two rings, since with one two workers that send to
  // each other could fill theirs and wait for each other's forever.
  int send_slots = 8;
  int receive_slots = 8;
};

// Thread-safe.
struct StagingStats {
  std::atomic<int> free_send_slots = 0;
  std::atomic<int> free_receive_slots = 0;
  std::atomic<int> waiting = 0;  // messages of both directions that wait for a slot
  std::atomic<int> copying = 0;  // copies under way
};

// Wraps a transport that moves host memory only and moves device memory through it, by way of
// pinned slots. Payloads in host memory pass as they are.
//
// Sending: the message waits in line for slots, its parts are copied there, it is sealed and sent
// from there; the slots are free again when the inner transport has let go. Receiving: the payload
// arrives in slots, is verified there and copied on; it is reported when the copy has ended. While
// no slot is free it waits at its sender (ReceivePlan::later): the memory used is bounded, nothing
// is dropped, and the lines move, because a slot is held only by what moves by itself or ends with
// its connection. Slots of a peer that has stopped are held until it is declared dead.
//
// OnClosed is reported when the copies for the peer have ended as well. Destruction waits for
// copies, without a bound: memory that a device writes cannot be taken back.
//
// INVALID_ARGUMENT for options without slots. `stats` is shared with whoever watches.
TransportFactory MakeTransport(
    TransportFactory inner,
    StagingCopierFactory copier,
    StagingOptions options = {},
    std::shared_ptr<StagingStats> stats = std::make_shared<StagingStats>());

}  // namespace baton::staged
