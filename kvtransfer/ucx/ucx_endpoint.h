#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "kvtransfer/transport.h"
#include "kvtransfer/ucx/ucx_events.h"
#include "kvtransfer/ucx/ucx_fragments.h"
#include "kvtransfer/ucx/ucx_handles.h"

namespace baton::ucx {

// A connection: open, then closing, then gone once the close and every operation have called back.
// Owned by the transport; its parts work on it.
struct Endpoint {
  // A message whose receiver has answered, on its way in fragments.
  struct Sending {
    Operation* message;
    FragmentCutter cutter;
    FragmentHeader next;
  };

  UcxEvents::EndpointTag tag;
  ucp_ep_h handle = nullptr;
  bool closing = false;
  int outstanding = 0;                                       // operations
  absl::flat_hash_map<TransferToken, Arrival> waiting;       // to be placed later
  absl::flat_hash_map<std::uint64_t, Operation*> announced;  // sends that were not answered
  std::deque<Sending> sending;                               // of which fragments are to be posted
  int fragments_posted = 0;                                  // and not called back
  std::uint64_t next_sequence = 1;
  absl::Status why;  // of the end
  mutable std::string carrier;
  UcpRemoteKey pool_key;
  std::uint64_t pool_address = 0;  // the peer's
  std::uint64_t pool_bytes = 0;
};

inline Operation& StartOperation(UcxEvents& events,
                                 Endpoint& endpoint,
                                 OperationKind kind,
                                 TransferToken token) {
  ++endpoint.outstanding;
  return events.Start(endpoint.tag.peer, kind, token);
}

// A request calls back when it is done; anything else is the outcome already.
inline void Follow(UcxEvents& events, Operation& operation, ucs_status_ptr_t request) {
  if (!UCS_PTR_IS_PTR(request)) {
    events.Finish(operation, UCS_PTR_RAW_STATUS(request));
  }
}

}  // namespace baton::ucx
