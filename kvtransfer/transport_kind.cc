#include "kvtransfer/transport_kind.h"

namespace baton {

std::string_view ToString(TransportKind kind) {
  switch (kind) {
    case TransportKind::kRdma:
      return "rdma";
    case TransportKind::kMapped:
      return "mapped";
    case TransportKind::kTcp:
      return "tcp";
    case TransportKind::kGrpc:
      return "grpc";
  }
  return "unknown";
}

std::optional<TransportKind> ParseTransportKind(std::string_view name) {
  for (const TransportKind kind : kTransportKinds) {
    if (ToString(kind) == name) {
      return kind;
    }
  }
  return std::nullopt;
}

}  // namespace baton
