#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "bench/trace_files.h"
#include "common/block_hash.h"
#include "planner/cost_model.h"
#include "router/route_policy.h"
#include "router/tier_loads.h"

namespace baton {

// A request of a trace as a router sees it.
struct ReplayRequest {
  double arrival_seconds = 0;
  std::vector<PrefixHash> hashes;  // of its prompt, padded to whole blocks
  int output_tokens = 1;

  std::size_t prompt_tokens() const { return hashes.size() * kBlockTokens; }
};

// REQUIRES: a trace with hash ids that stand for blocks.
std::vector<ReplayRequest> ReplayRequests(const Trace& trace);

struct ReplaySetup {
  RoutePolicyKind policy = RoutePolicyKind::kPrefix;
  std::uint32_t workers = 8;
  std::optional<std::size_t> blocks_per_worker;  // room of a cache; absent: without bound
  // Room of a second cache in the host's memory, for what the first one evicts: its blocks are
  // loaded at `host_rate`. 0: there is none.
  std::size_t host_blocks_per_worker = 0;
  TransportRate host_rate = NominalTierRates()[v1::KV_TIER_HOST];
  // Requests come this many times as fast as in the trace. Absent: each when the one before has
  // ended, so that no one ever waits.
  std::optional<double> speed = 1;
  std::uint64_t seed = 1;  // of the choices among near-equals
};

struct ReplayResult {
  std::size_t requests = 0;
  std::size_t blocks = 0;                    // of all prompts
  std::size_t hit_blocks = 0;                // that the worker had to compute no more
  std::size_t loaded_blocks = 0;             // of these, out of its host's memory
  double first_token_seconds = 0;            // mean
  double predicted_first_token_seconds = 0;  // mean of what the policy said; 0 when it says nothing
  double p99_first_token_seconds = 0;
  double busy = 0;                // share of the time that a worker computes prompts, mean
  double largest_share = 0;       // of the requests, that one worker got, times the workers
  std::size_t index_entries = 0;  // at the end; as many as `cached_blocks` unless events got lost
  std::size_t cached_blocks = 0;  // of all workers, in both tiers

  double hit_rate() const {
    return blocks == 0 ? 0 : static_cast<double>(hit_blocks) / static_cast<double>(blocks);
  }
};

// Sends the requests through the real policy and the real prefix index to simulated decode workers
// in virtual time. A worker computes prompts one after the other, as long as `costs` says, and then
// decodes; what it caches and evicts it tells the index at once. The router knows of load what it
// has sent. Prompts are served whole.
//
// Deterministic; thread-safe.
ReplayResult Replay(const std::vector<ReplayRequest>& requests,
                    const CostModel& costs,
                    const ReplaySetup& setup);

}  // namespace baton
