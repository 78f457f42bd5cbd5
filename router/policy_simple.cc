#include <algorithm>
#include <numeric>
#include <tuple>

#include "router/policy_rules.h"

namespace baton {
namespace {

// Fewest sequences, then fewest tokens to compute, then fewest requests ever: with equal load they
// are shared evenly.
bool LessLoaded(const RouteCandidate& a, const RouteCandidate& b) {
  const auto rank = [](const RouteCandidate& worker) {
    return std::make_tuple(RequestsOf(worker), worker.load.queued_prefill_tokens, worker.dispatched,
                           worker.worker);
  };
  return rank(a) < rank(b);
}

// Candidates that the policy chooses among for a prompt that is to be split: those that a prefill
// worker fits, unless there is none. Empty when the path is forced and there is none.
std::vector<const RouteCandidate*> FittedDecode(const RouteRequest& request,
                                                const RouteCandidates& candidates) {
  const PrefillFit fit(candidates);
  std::vector<const RouteCandidate*> fitted;
  std::vector<const RouteCandidate*> all;
  for (const RouteCandidate& decode : candidates.decode) {
    all.push_back(&decode);
    if (fit.AnyFits(decode)) {
      fitted.push_back(&decode);
    }
  }
  return fitted.empty() && request.path != v1::PATH_DISAGGREGATED ? all : fitted;
}

// The one with the fewest requests, for decode and prefill alike. Looks at nothing else: neither at
// what is cached (but for the path) nor at how quick a worker is.
class LeastLoadedPolicy final : public RoutePolicy {
 public:
  absl::StatusOr<RouteDecision> Choose(const RouteRequest& request,
                                       const RouteCandidates& candidates,
                                       const RouteOptions& options) const override {
    if (candidates.decode.empty()) {
      return NoDecodeWorker();
    }
    const RouteCandidate* decode =
        &*std::min_element(candidates.decode.begin(), candidates.decode.end(), LessLoaded);
    if (!ReasonToColocate(request, *decode, options).has_value()) {
      const auto fitted = FittedDecode(request, candidates);
      if (fitted.empty()) {
        return NoPrefillWorker();
      }
      decode = *std::min_element(
          fitted.begin(), fitted.end(),
          [](const RouteCandidate* a, const RouteCandidate* b) { return LessLoaded(*a, *b); });
    }
    return DecideByLength(request, *decode, candidates, options, LessLoaded);
  }
};

// One after the other, by the number of the request. When all pairs that this meets have had their
// turn, prefill workers are shifted by one, so that in time every pair gets its turn.
class RoundRobinPolicy final : public RoutePolicy {
 public:
  absl::StatusOr<RouteDecision> Choose(const RouteRequest& request,
                                       const RouteCandidates& candidates,
                                       const RouteOptions& options) const override {
    if (candidates.decode.empty()) {
      return NoDecodeWorker();
    }
    const RouteCandidate* decode = &candidates.decode[request.number % candidates.decode.size()];
    std::size_t decoders = candidates.decode.size();
    if (!ReasonToColocate(request, *decode, options).has_value()) {
      const auto fitted = FittedDecode(request, candidates);
      if (fitted.empty()) {
        return NoPrefillWorker();
      }
      decode = fitted[request.number % fitted.size()];
      decoders = fitted.size();
    }
    // Their order as they stand, from the one whose turn it is.
    const std::size_t count = std::max<std::size_t>(candidates.prefill.size(), 1);
    const std::uint64_t shifts = request.number / std::lcm(decoders, count);
    const std::size_t first = (request.number + shifts) % count;
    const auto turn = [&candidates, count, first](const RouteCandidate& prefill) {
      const auto place = static_cast<std::size_t>(&prefill - candidates.prefill.data());
      return (place + count - first) % count;
    };
    return DecideByLength(
        request, *decode, candidates, options,
        [&turn](const RouteCandidate& a, const RouteCandidate& b) { return turn(a) < turn(b); });
  }
};

}  // namespace

std::unique_ptr<RoutePolicy> MakeRoundRobinPolicy() {
  return std::make_unique<RoundRobinPolicy>();
}

std::unique_ptr<RoutePolicy> MakeLeastLoadedPolicy() {
  return std::make_unique<LeastLoadedPolicy>();
}

}  // namespace baton
