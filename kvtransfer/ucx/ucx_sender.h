#pragma once

#include <cstddef>
#include <cstdint>

#include "kvtransfer/ucx/ucx_endpoint.h"

namespace baton::ucx {

// Sends messages to the endpoints of a transport. A short payload is sent along at once, a longer
// one only after the receiver has named its place: over TCP in fragments (ucx_fragments.h), else by
// UCX's rendezvous, which RDMA needs no copy for.
//
// Not thread-safe: used only by the transfer thread.
class UcxSender {
 public:
  // `events` outlives the sender.
  explicit UcxSender(UcxEvents& events) : events_(events) {}

  absl::Status Send(Endpoint& endpoint, OutgoingMessage message, bool over_tcp);
  // Whether an announced payload is wanted.
  void Answer(Endpoint& endpoint, std::uint64_t sequence, bool accepted);

  // The peer has answered an announcement of ours.
  void StartFragments(Endpoint& endpoint, const Arrival& answer);
  void FragmentSent(Endpoint& endpoint, const Operation& fragment);

  // The endpoint is being closed: finishes what would never be called back for.
  void Abandon(Endpoint& endpoint);

 private:
  // Both leave `operation` to be followed or abandoned by what is returned.
  static ucs_status_ptr_t Post(Endpoint& endpoint,
                               unsigned id,
                               unsigned protocol,
                               Operation& operation);
  absl::Status PostOrAbandon(Endpoint& endpoint,
                             unsigned id,
                             unsigned protocol,
                             Operation& operation);
  absl::Status Announce(Endpoint& endpoint, Operation& message, std::size_t payload_bytes);
  void PostFragments(Endpoint& endpoint);
  static void GiveUp(Endpoint& endpoint, Operation& message);

  UcxEvents& events_;
};

}  // namespace baton::ucx
