#pragma once

#include <string>

#include "kvtransfer/transport.h"

namespace baton::ucx {

struct TransportOptions {
  std::string listen_host = "127.0.0.1";  // name or number; resolved once
  int port = 0;                           // 0: any free one
  std::string advertise_host;             // name or number, resolved once; empty: listen_host
};

// Presets what UCX reads from its environment, keeping whatever the user has set. Call in main
// before any other thread runs and before the first transport.
void SetDefaults();

// Active messages over whatever UCX finds (TCP; RDMA with its devices), endpoints by socket
// address, peer-failure error mode, no remote memory access.
TransportFactory MakeTransport(TransportOptions options);

}  // namespace baton::ucx
