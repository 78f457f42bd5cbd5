#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/generator.h"
#include "router/fleet.h"
#include "router/pair_health.h"
#include "router/route_policy.h"
#include "router/tiered_index.h"

namespace baton {

// What a request asks of a route.
struct RouteQuery {
  std::span<const PrefixHash> hashes;  // of the prompt's full blocks
  std::size_t prompt_tokens = 0;
  v1::Path path = v1::PATH_UNSPECIFIED;
  std::string session;
  std::string zone;  // only workers of this zone; empty: of any
  std::uint32_t choices = 1;
  std::span<const WorkerSlot> tried;  // decode workers that are no longer asked
};

// Where a request goes, with its load counted there while this lives.
struct ChosenRoute {
  std::shared_ptr<const UsableWorker> decode;
  std::vector<std::shared_ptr<const UsableWorker>> prefill;  // in the order to try
  v1::RouteReason reason = v1::ROUTE_REASON_UNSPECIFIED;
  std::uint32_t cached_tokens = 0;
  std::vector<LoadMark> marks;
};

// Puts fleet, prefix index and policy together: one choice for one request, counted at once.
//
// Thread-safe.
class RouteChooser {
 public:
  struct Stats {
    std::uint64_t query_tokens = 0;  // of prompts that were placed, since the start
    std::uint64_t hit_tokens = 0;  // of these, held and used by the worker that computes the prompt
    PerTier<std::uint64_t> hit_tokens_in{};  // of these, by the quickest tier that has them
  };

  // Both must outlive this.
  RouteChooser(Fleet& fleet, const TieredIndex& index, RouteOptions options);

  // UNAVAILABLE with reason NO_DECODE_WORKER, NO_PREFILL_WORKER or NO_WORKER_IN_ZONE.
  absl::StatusOr<ChosenRoute> Choose(const RouteQuery& query);

  PairHealth& pairs() { return pairs_; }
  // Prompts with fewer uncached tokens are served whole by the decode worker.
  std::size_t colocate_below_tokens() const { return colocate_below_tokens_.load(); }
  void set_colocate_below_tokens(std::size_t tokens) { colocate_below_tokens_.store(tokens); }
  const RouteOptions& options() const { return options_; }
  Stats stats() const;

 private:
  absl::Status FillCandidates(const RouteQuery& query,
                              const FleetView& view,
                              const TieredMatches& matches,
                              RouteCandidates& candidates) const;
  void CountHits(const HeldRuns* held, std::size_t hit_tokens);
  void FillCutPairs(const FleetView& view, RouteCandidates& candidates) const;

  Fleet& fleet_;
  const TieredIndex& index_;
  const RouteOptions options_;
  const std::unique_ptr<const RoutePolicy> policy_;
  PairHealth pairs_;
  std::atomic<std::size_t> colocate_below_tokens_;
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::uint64_t> query_tokens_{0};
  PerTier<std::atomic<std::uint64_t>> hit_tokens_{};
};

}  // namespace baton
