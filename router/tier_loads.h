#pragma once

#include <cstddef>

#include "planner/rates.h"
#include "router/route_policy.h"
#include "router/tiered_index.h"

namespace baton {

// What it takes to bring blocks of a tier back to the device.
struct TierLoad {
  double fixed_seconds = 0;  // of every load, whatever its size
  double seconds_per_block = 0;
};
using TierLoads = PerTier<TierLoad>;  // those of the device are 0

// Of a worker of which nothing was measured: round figures.
PerTier<TransportRate> NominalTierRates();

TierLoads LoadsOf(const PerTier<TransportRate>& rates, std::size_t block_bytes);

// Sets what the worker need not compute of a prompt, and how long it loads for that: of what it
// holds, the part with which its first token comes soonest. That is what its device has, or what
// the host's memory has besides, or everything. So what takes longer to load than to compute anew
// counts as not held.
//
// Pure. REQUIRES: the worker's load and costs are set.
void UsePrefix(const HeldRuns& held,
               const TierLoads& loads,
               std::size_t prompt_tokens,
               RouteCandidate& worker);

}  // namespace baton
