#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "baton/v1/completions.pb.h"
#include "router/fleet_view.h"

namespace baton {

struct PlainRouteOptions {
  // Prompts with fewer tokens are served whole by the decode worker; this many are split.
  std::size_t colocate_below_tokens = 512;
};

struct PlainRouteRequest {
  std::size_t prompt_tokens = 0;
  v1::Path path = v1::PATH_UNSPECIFIED;  // unspecified: free choice
};

struct PlainRouteDecision {
  WorkerView decode;
  std::vector<WorkerView> prefill;  // in the order to try; empty: colocated
  v1::RouteReason reason = v1::ROUTE_REASON_UNSPECIFIED;
};

// Where a request goes. Pure: the same arguments give the same decision.
//
// Of workers that are equally fit the one with the fewest requests in flight goes first, then the
// one that has had the fewest. A decode worker that no prefill worker fits is taken for a split
// prompt only when there is no other. UNAVAILABLE, with reason NO_DECODE_WORKER or
// NO_PREFILL_WORKER, when the path that was asked for has no workers.
absl::StatusOr<PlainRouteDecision> ChooseRoute(const PlainRouteRequest& request,
                                               const FleetView& fleet,
                                               const PlainRouteOptions& options);

}  // namespace baton
