#pragma once

#include <string>

#include "kvtransfer/transport.h"

namespace baton::ucx {

struct TransportOptions {
  std::string listen_host = "127.0.0.1";  // name or number; resolved once
  int port = 0;                           // 0: any free one
  std::string advertise_host;             // name or number, resolved once; empty: listen_host
  // RDMA lanes only, on which peers may read the pool. Addresses are then "rdma:host:port".
  bool rdma = false;
};

// Presets what UCX reads from its environment, keeping whatever the user has set. Call in main
// before any other thread runs and before the first transport.
void SetDefaults();

// Why this machine cannot be read by RDMA: no device, or none whose port is up. Empty: it can.
std::string WhyNoRdma();

// Whether UCX starts here at all.
absl::Status CheckUsable();

// Active messages over whatever UCX finds (TCP; RDMA with its devices), endpoints by socket
// address, peer-failure error mode. No remote memory access but with `rdma`: over TCP and shared
// memory UCX would write wherever a peer says, so these are left out there.
TransportFactory MakeTransport(TransportOptions options);

}  // namespace baton::ucx
