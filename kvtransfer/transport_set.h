#pragma once

#include <vector>

#include "kvtransfer/transport.h"

namespace baton {

// Several transports as one, each reached by addresses of its own kind (transport_choice.h): UCX
// over TCP, UCX over RDMA, gRPC. The set's address is all of theirs, most wanted first, and Connect
// takes one of them. The first transport takes addresses without a kind.
TransportFactory MakeTransportSet(std::vector<TransportFactory> members);

}  // namespace baton
