#pragma once

#include <cstdlib>
#include <string>
#include <utility>

#include "kvtransfer/ucx/ucx_transport.h"

namespace baton {

// Where the UCX transport of a test listens, and what is to carry its bytes: loopback and TCP,
// unless tests/rdma runs the test on a machine with an RDMA device.
inline std::string EnvironmentOr(const char* name, std::string otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : std::move(otherwise);
}
inline TransportFactory MakeUcxUnderTest() {
  ucx::SetDefaults();
  return ucx::MakeTransport({.listen_host = EnvironmentOr("BATON_TEST_KV_HOST", "127.0.0.1")});
}
inline std::string UcxCarrierUnderTest() {
  return EnvironmentOr("BATON_TEST_KV_CARRIER", "tcp");
}

}  // namespace baton
