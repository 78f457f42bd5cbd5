#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "baton/v1/completions.pb.h"
#include "planner/cost_model.h"
#include "router/worker_slot.h"

namespace baton {

// A worker that may get the request at hand, as it is now. Its zone is the request's.
struct RouteCandidate {
  WorkerSlot worker;
  // Made of its address: the same at every router and after restarts, for affinity. 0: the slot.
  std::uint64_t identity = 0;
  std::uint32_t layout = 0;         // KV blocks pass only between equal ones
  std::uint32_t cached_tokens = 0;  // leading tokens of the prompt whose KV it need not compute
  std::uint32_t in_flight = 0;      // requests of this router that it has now
  // Until those cached tokens that are in slower tiers are on its device (tier_loads.h). Short, as
  // there are a thousand candidates to go through.
  float load_seconds = 0;
  std::uint64_t dispatched = 0;      // requests of this router that it has ever had
  WorkerLoad load;                   // as it reported, with what this router has sent it since
  const CostModel* costs = nullptr;  // never null: as measured at it, until then at others like it
  // How its KV blocks travel, as measured; null: not known. Of a prefill candidate.
  const TransportRate* transport = nullptr;
};

struct RouteCandidates {
  std::vector<RouteCandidate> decode;
  std::vector<RouteCandidate> prefill;
  // Pairs (decode, prefill) between which transfers have failed lately.
  std::vector<std::pair<WorkerSlot, WorkerSlot>> cut_pairs;
};

struct RouteRequest {
  std::size_t prompt_tokens = 0;
  v1::Path path = v1::PATH_UNSPECIFIED;  // unspecified: free choice
  std::string_view session;              // affinity key; empty: none
  std::uint64_t number = 0;              // of this request: one more than that of the one before
  std::uint64_t random = 0;              // uniform bits, for choices among near-equals
};

struct RouteDecision {
  WorkerSlot decode;
  std::vector<WorkerSlot> prefill;  // in the order to try; empty: colocated
  v1::RouteReason reason = v1::ROUTE_REASON_UNSPECIFIED;
  // What this router takes the chosen workers to compute: counted at once as their load.
  std::uint32_t cached_tokens = 0;  // of the worker that computes the prompt
  double first_token_seconds = 0;   // predicted; 0 by a policy that does not predict
};

enum class RoutePolicyKind { kRoundRobin, kLeastLoaded, kPrefix, kSession };
// "round-robin", "least-loaded", "prefix", "session"; nullopt for any other word.
std::optional<RoutePolicyKind> ParseRoutePolicyKind(std::string_view name);

struct RouteOptions {
  RoutePolicyKind policy = RoutePolicyKind::kPrefix;
  // Prompts with fewer uncached tokens are served whole by the decode worker; this many are split
  // where that is quicker. Under "measured" the router sets it to the live crossover.
  std::size_t colocate_below_tokens = 512;
};

// Where a request goes.
//
// Pure: the same arguments give the same decision. Immutable after construction; thread-safe.
class RoutePolicy {
 public:
  virtual ~RoutePolicy() = default;
  // UNAVAILABLE, with reason NO_DECODE_WORKER or NO_PREFILL_WORKER, when the path that was asked
  // for has no workers.
  virtual absl::StatusOr<RouteDecision> Choose(const RouteRequest& request,
                                               const RouteCandidates& candidates,
                                               const RouteOptions& options) const = 0;
};

std::unique_ptr<RoutePolicy> MakeRoutePolicy(RoutePolicyKind kind);

}  // namespace baton
