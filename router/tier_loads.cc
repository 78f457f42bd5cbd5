#include "router/tier_loads.h"

#include <algorithm>
#include <limits>

#include "common/block_hash.h"

namespace baton {

PerTier<TransportRate> NominalTierRates() {
  PerTier<TransportRate> rates;
  rates[v1::KV_TIER_HOST] = {.name = "host", .fixed_seconds = 0.0002, .bytes_per_second = 10e9};
  rates[v1::KV_TIER_DISK] = {.name = "disk", .fixed_seconds = 0.002, .bytes_per_second = 1e9};
  return rates;
}

TierLoads LoadsOf(const PerTier<TransportRate>& rates, std::size_t block_bytes) {
  TierLoads loads;
  for (std::size_t tier = 1; tier < kKvTiers; ++tier) {
    loads[tier] = {
        .fixed_seconds = rates[tier].fixed_seconds,
        .seconds_per_block = static_cast<double>(block_bytes) / rates[tier].bytes_per_second};
  }
  return loads;
}

void UsePrefix(const HeldRuns& held,
               const TierLoads& loads,
               std::size_t prompt_tokens,
               RouteCandidate& worker) {
  const auto tokens = static_cast<double>(prompt_tokens);
  double best_seconds = std::numeric_limits<double>::infinity();
  for (const HeldRun& run : held) {
    double load_seconds = 0;
    for (std::size_t tier = 1; tier < kKvTiers; ++tier) {
      if (run.in_tier[tier] > 0) {
        load_seconds +=
            loads[tier].fixed_seconds + run.in_tier[tier] * loads[tier].seconds_per_block;
      }
    }
    const std::uint32_t cached = run.blocks * static_cast<std::uint32_t>(kBlockTokens);
    // Of a prompt that is wholly cached the last token is computed again.
    const PromptTokens prompt{.tokens = tokens,
                              .cached_tokens = std::min<double>(cached, tokens - 1)};
    const double seconds =
        load_seconds + worker.costs->PredictColocated(prompt, worker.load).first_token_seconds();
    if (seconds < best_seconds) {
      best_seconds = seconds;
      worker.cached_tokens = cached;
      worker.load_seconds = static_cast<float>(load_seconds);
    }
  }
}

}  // namespace baton
