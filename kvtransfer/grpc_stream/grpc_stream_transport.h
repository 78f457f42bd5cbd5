#pragma once

#include <string>

#include "kvtransfer/transport.h"
#include "proto/tls_credentials.h"

namespace baton::grpc_stream {

struct TransportOptions {
  std::string listen = "127.0.0.1:0";  // host:port; 0: any free port
  std::string advertise_host;          // empty: the host of `listen`
  TlsFiles tls;                        // mutual when there is an authority
};

// Messages in bidirectional gRPC streams, one for each connection, on a listener of its own. For
// networks that are not trusted, and where there is no UCX. Addresses are "grpc:host:port".
//
// Payloads are copied into gRPC's memory when their turn to be written comes and are let go of when
// gRPC's flow control has taken them, so a slow peer holds up the sender.
TransportFactory MakeTransport(TransportOptions options);

}  // namespace baton::grpc_stream
