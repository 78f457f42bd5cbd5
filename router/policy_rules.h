#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "router/route_policy.h"

namespace baton {

// What all policies have in common: which workers fit together, and which path a prompt takes.

// Prefill workers that the decode worker is given to try, at most.
inline constexpr std::size_t kMostPrefillTries = 3;

// Which prefill candidates fit a decode candidate: those of its layout to which it is not cut off.
// Borrows the candidates, which must outlive it. Immutable after construction; thread-safe.
class PrefillFit {
 public:
  explicit PrefillFit(const RouteCandidates& candidates);

  bool Fits(const RouteCandidate& decode, const RouteCandidate& prefill) const {
    return decode.layout == prefill.layout && !IsCut(decode.worker, prefill.worker);
  }
  bool AnyFits(const RouteCandidate& decode) const;
  // Some pair with this worker is cut.
  bool HasCuts(const RouteCandidate& decode) const;

 private:
  bool IsCut(WorkerSlot decode, WorkerSlot prefill) const;

  const RouteCandidates& candidates_;
  std::vector<std::pair<WorkerSlot, WorkerSlot>> cuts_;  // sorted
  std::vector<std::uint32_t> layouts_;                   // of the prefill candidates; sorted
};

// What is left of the prompt for a worker to compute. At least 1: of a prompt that is wholly cached
// the last token is computed again.
inline std::size_t UncachedTokens(const RouteRequest& request, const RouteCandidate& worker) {
  return request.prompt_tokens > worker.cached_tokens
             ? request.prompt_tokens - worker.cached_tokens
             : std::min<std::size_t>(request.prompt_tokens, 1);
}

// The reason to serve the prompt whole on this worker that no load and no rate changes: REQUESTED,
// SHORT_PROMPT or PREFIX_CACHED. nullopt: it may be split.
inline std::optional<v1::RouteReason> ReasonToColocate(const RouteRequest& request,
                                                       const RouteCandidate& decode,
                                                       const RouteOptions& options) {
  if (request.path != v1::PATH_UNSPECIFIED) {
    return request.path == v1::PATH_COLOCATED ? std::optional(v1::ROUTE_REASON_REQUESTED)
                                              : std::nullopt;
  }
  if (request.prompt_tokens < options.colocate_below_tokens) {
    return v1::ROUTE_REASON_SHORT_PROMPT;
  }
  return UncachedTokens(request, decode) < options.colocate_below_tokens
             ? std::optional(v1::ROUTE_REASON_PREFIX_CACHED)
             : std::nullopt;
}

// Requests that the worker has now: of all routers, or of this one where it reports none.
inline double RequestsOf(const RouteCandidate& worker) {
  return std::max(double{1} * worker.in_flight, worker.load.running_sequences);
}

// With how many requests a decode worker is far busier than the others: `kBusyFactor` times the
// mean of all, this request included; but never fewer than `always`, or an idle fleet would send
// requests that belong together to different workers.
inline constexpr double kBusyFactor = 2;
double MostRequests(const std::vector<RouteCandidate>& decode, double always);

absl::Status NoDecodeWorker();
absl::Status NoPrefillWorker();

// The decision of a policy that has settled on a decode worker and predicts nothing: whole where
// there is a reason or no prefill worker fits, else split. `order`: what comes first is tried
// first.
RouteDecision DecideByLength(
    const RouteRequest& request,
    const RouteCandidate& decode,
    const RouteCandidates& candidates,
    const RouteOptions& options,
    const std::function<bool(const RouteCandidate&, const RouteCandidate&)>& order);

std::unique_ptr<RoutePolicy> MakeRoundRobinPolicy();
std::unique_ptr<RoutePolicy> MakeLeastLoadedPolicy();
std::unique_ptr<RoutePolicy> MakePrefixPolicy();
std::unique_ptr<RoutePolicy> MakeSessionPolicy();

}  // namespace baton
