#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvtransfer/transport_kind.h"

namespace baton {

// What this process may use.
struct TransportPolicy {
  std::optional<TransportKind> forced;  // absent: the best that both sides have
  // Kinds that this process lacks, and why.
  std::vector<std::pair<TransportKind, std::string>> absent;

  bool Allows(TransportKind kind) const { return !forced || *forced == kind; }
  // nullptr when the process has it.
  const std::string* WhyAbsent(TransportKind kind) const;
};

// Where messages to a peer can go, and by what.
struct Route {
  TransportKind kind = TransportKind::kTcp;  // never kMapped: that goes with another's messages
  std::string address;                       // as Transport::Connect takes it
  friend bool operator==(const Route&, const Route&) = default;
};

// What a process says of itself is its addresses, most wanted first: "host:port" (UCX),
// "rdma:host:port", "grpc:host:port", with commas between them.
std::string JoinAddresses(const std::vector<std::string>& addresses);
std::vector<Route> ParseAddresses(const std::string& addresses);
// Without the kind in front.
std::string HostPort(const std::string& address);

// The routes to a peer with these addresses that may be tried, in order. FAILED_PRECONDITION naming
// what is asked for and what the peer has when there are none.
absl::StatusOr<std::vector<Route>> ChooseRoutes(const TransportPolicy& policy,
                                                const std::string& addresses);

// A kind that would do for blocks over a connection, or why it would not.
struct TransportCandidate {
  TransportKind kind = TransportKind::kTcp;
  absl::Status usable;
};

struct TransportChoice {
  std::vector<TransportKind> kinds;  // to be tried in this order; at least one
  std::string reason;                // why the first one
};

// The choice of transport for one peer, once it is known what it has: the first usable candidate
// that the policy allows, then the others to fall back to. `candidates` are in the order of
// preference; kinds that are not among them are not there on this connection.
// FAILED_PRECONDITION with every reason when there is none.
absl::StatusOr<TransportChoice> ChooseTransport(const TransportPolicy& policy,
                                                const std::vector<TransportCandidate>& candidates);

}  // namespace baton
