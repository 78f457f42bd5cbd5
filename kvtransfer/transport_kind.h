#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace baton {

// How KV blocks travel, most wanted first. On the wire: never renumber.
enum class TransportKind : std::uint16_t {
  kRdma = 1,    // the decode side reads over RDMA lanes
  kMapped = 2,  // the decode side copies out of the other's pool, mapped from its file
  kTcp = 3,     // messages over what UCX finds
  kGrpc = 4,    // messages in a gRPC stream
};

inline constexpr std::array kTransportKinds = {TransportKind::kRdma, TransportKind::kMapped,
                                               TransportKind::kTcp, TransportKind::kGrpc};

// "rdma", "mapped", "tcp", "grpc": as in --kv-transport, logs and metrics.
std::string_view ToString(TransportKind kind);
std::optional<TransportKind> ParseTransportKind(std::string_view name);

}  // namespace baton
