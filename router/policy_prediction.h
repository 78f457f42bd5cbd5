#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "router/policy_rules.h"

namespace baton {

// What the policies that predict take a way to serve a request to cost, in seconds:
//
//   whole on D   first token by D                       + w * stall on D + pace on D
//   split P, D   first token by P, transfer included    + w * stall on P + pace on D
//
// The first part is RouteCandidate::load_seconds and FirstTokenTime::decoding_seconds: loading of
// cached blocks from slower tiers, queue, prefill of the uncached tokens, steps shared with running
// sequences, and, when split, of the transfer what prefill does not hide. Stall is the time that
// sequences running there stand still meanwhile, added up. Pace is the time the first kPacedTokens
// tokens take beside what runs on D: without it nothing would keep split prompts away from a busy
// decode worker.
inline constexpr double kStallWeight = 0.5;  // w: a wait within an answer is half a wait for it
inline constexpr double kPacedTokens = 8;

// A prompt that is long enough to be split is served whole only where this is clearly quicker: its
// first token counts as later by this factor and this time. So an idle fleet splits it although a
// transfer costs some milliseconds.
inline constexpr double kWholePromptFactor = 1.2;
inline constexpr double kWholePromptSeconds = 0.020;

// Costs within this share of the lowest one are as good as it, for they are predictions: among them
// the choice is random, so that routers that know the same do not all choose the same.
inline constexpr double kNearEqual = 0.05;

// A way to serve a request.
struct RouteOption {
  std::size_t decode = 0;              // index into candidates
  std::optional<std::size_t> prefill;  // absent: whole on the decode worker
  v1::RouteReason reason = v1::ROUTE_REASON_UNSPECIFIED;
  bool loads = false;  // the worker that computes the prompt brings some of it from slower tiers
  double first_token_seconds = 0;
  double cost = 0;  // seconds
};

// Of a request, all of whose ways are compared. Looks at no pair of workers that cannot win: the
// best prefill worker of a layout is the best for all its decode workers, but where a pair is cut.
//
// Borrows everything; not thread-safe: lives for one decision.
class RoutePrediction {
 public:
  RoutePrediction(const RouteRequest& request,
                  const RouteCandidates& candidates,
                  const RouteOptions& options);
  ~RoutePrediction();
  RoutePrediction(const RoutePrediction&) = delete;
  RoutePrediction& operator=(const RoutePrediction&) = delete;

  // The best way by this decode worker; nullopt when the path is forced and it has none.
  std::optional<RouteOption> BestBy(std::size_t decode) const;

  RouteDecision Decide(const RouteOption& option) const;

 private:
  struct Prefill {
    FirstTokenTime time;  // exposed_seconds left out, and what the worker loads
    double chunks = 0;
    double cost = 0;  // with the transfer of a prompt that the decode worker has nothing of
  };
  struct LayoutBest {
    std::uint32_t layout = 0;
    std::size_t prefill = 0;
  };

  void PredictPrefill(std::size_t index);
  std::size_t ChooseAmong(std::uint32_t layout) const;
  std::optional<std::size_t> BestPrefillFor(const RouteCandidate& decode) const;
  // Both without the pace.
  RouteOption Whole(std::size_t decode, v1::RouteReason reason) const;
  RouteOption Split(std::size_t decode, std::size_t prefill) const;
  double PaceSeconds(const RouteCandidate& decode) const;
  PromptTokens PromptOn(const RouteCandidate& worker) const;

  const RouteRequest& request_;
  const RouteCandidates& candidates_;
  const RouteOptions& options_;
  const PrefillFit fit_;
  std::vector<Prefill> prefill_;  // [prefill candidates]
  // Memory of the last one on this thread, for the next: taken anew each time it would make the
  // heap shrink and grow.
  static thread_local std::vector<Prefill> spare_;
  std::vector<LayoutBest> best_;  // one for each layout
};

// Index of one of `costs` that is as good as the lowest: of two drawn at random the one that has
// had fewer requests. REQUIRES: not empty; `workers` are as many.
std::size_t ChooseNearEqual(const std::vector<double>& costs,
                            const std::vector<const RouteCandidate*>& workers,
                            std::uint64_t random);

}  // namespace baton
