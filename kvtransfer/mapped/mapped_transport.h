#pragma once

#include <optional>

#include "kvtransfer/mapped/pool_file.h"
#include "kvtransfer/transport.h"

namespace baton::mapped {

// Adds reading of pools on the same host to another transport, which carries the messages: the pool
// of a peer is mapped read-only once for each connection and copied from, a message's worth in each
// call of Progress. Without a `pool` peers cannot read ours.
TransportFactory MakeTransport(TransportFactory messages, std::optional<PoolFile> pool);

}  // namespace baton::mapped
