#pragma once

#include <memory>
#include <string>

#include "kvtransfer/faulty/faulty_transport.h"
#include "kvtransfer/grpc_stream/grpc_stream_transport.h"
#include "kvtransfer/inproc/inproc_transport.h"
#include "kvtransfer/ucx/ucx_transport.h"
#include "tests/kvtransfer/transfer_harness.h"
#include "tests/kvtransfer/ucx_under_test.h"

namespace baton {

// What the suites run over, by name: "inproc", "ucx", "grpc"; "mapped", "mapped_ucx" and
// "mapped_grpc", pools read by mapping them with messages over one of the three; "staged_inproc",
// ..., pools on a device; "rdma", pools read over RDMA lanes, where there is a device (tests/rdma).
class TestTransports {
 public:
  TestTransports() { ucx::SetDefaults(); }

  NodeTransport Make(const std::string& name) const {
    if (name == "rdma") {
      return ucx::MakeTransport({.listen_host = EnvironmentOr("BATON_TEST_KV_HOST", "127.0.0.1"),
                                 .lanes = ucx::Lanes::kRdma});
    }
    TransportFactory messages = name.ends_with("ucx")    ? MakeUcxUnderTest()
                                : name.ends_with("grpc") ? grpc_stream::MakeTransport({})
                                                         : inproc::MakeTransport(hub_);
    if (name.starts_with("staged_")) {
      return Staged(std::move(messages));
    }
    NodeTransport transport(std::move(messages));
    transport.mapped = name.starts_with("mapped");
    return transport;
  }
  TransportFactory Messages(const std::string& name) const { return Make(name).messages; }

  // What FetchStats calls it.
  static std::string NameInStats(const std::string& name) {
    if (name.starts_with("mapped") || name == "rdma") {
      return name == "rdma" ? name : "mapped";
    }
    return name.ends_with("ucx")    ? UcxCarrierUnderTest()
           : name.ends_with("grpc") ? "grpc"
                                    : "inproc";
  }

 private:
  const std::shared_ptr<inproc::Hub> hub_ = inproc::MakeHub();  // shared with its transports
};

// For the names of parameterised tests.
inline const auto kTransportName = [](const auto& transport) { return transport.param; };

}  // namespace baton
