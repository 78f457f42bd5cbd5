#pragma once

#include <string>

#include "kvtransfer/transport.h"

namespace baton::ucx {

// What carries messages.
enum class Lanes {
  kAny,   // whatever UCX_TLS names
  kTcp,   // TCP alone, so that it works where RDMA has failed; what the user has set comes first
  kRdma,  // RDMA lanes alone, on which peers may read the pool. Addresses are "rdma:host:port".
};

struct TransportOptions {
  std::string listen_host = "127.0.0.1";  // name or number; resolved once
  int port = 0;                           // 0: any free one
  std::string advertise_host;             // name or number, resolved once; empty: listen_host
  Lanes lanes = Lanes::kAny;
};

// Presets what UCX reads from its environment, keeping whatever the user has set. Call in main
// before any other thread runs and before the first transport.
void SetDefaults();

// Whether this machine can be read by RDMA.
struct RdmaDevices {
  bool any = false;   // there is a device
  bool mlx5 = false;  // one that UCX's rc_mlx5 drives
  std::string why;    // it cannot: no device, or none whose port is up; empty: it can
};
// `folder`: where the kernel describes devices; another one in tests.
RdmaDevices FindRdma(const std::string& folder = "/sys/class/infiniband");

// Whether UCX starts here at all.
absl::Status CheckUsable();

// Active messages over whatever UCX finds (TCP; RDMA with its devices), endpoints by socket
// address, peer-failure error mode. No remote memory access but by kRdma: over TCP and shared
// memory UCX would write wherever a peer says, so these are left out there.
TransportFactory MakeTransport(TransportOptions options);

}  // namespace baton::ucx
