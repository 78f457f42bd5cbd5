#include <algorithm>
#include <vector>

#include "router/policy_prediction.h"

namespace baton {
namespace {

// A worker with a hot prefix takes so many at once, however idle the others are: beyond what a step
// computes at little more than the cost of one, a prediction of the first tokens says too little
// about the rest of the answer.
constexpr double kAlwaysTaken = 16;

// The way with the lowest predicted cost (RoutePrediction), over all decode workers but those that
// are far busier than the others.
class PrefixPolicy final : public RoutePolicy {
 public:
  absl::StatusOr<RouteDecision> Choose(const RouteRequest& request,
                                       const RouteCandidates& candidates,
                                       const RouteOptions& options) const override {
    if (candidates.decode.empty()) {
      return NoDecodeWorker();
    }
    const RoutePrediction prediction(request, candidates, options);
    const double most = MostRequests(candidates.decode, kAlwaysTaken);
    // Kept from one decision to the next: so much memory taken and given back each time would make
    // the heap shrink and grow now and then, and that decision a slow one.
    thread_local std::vector<RouteOption> ways;
    thread_local std::vector<RouteOption> busy_ways;
    thread_local std::vector<double> costs;
    thread_local std::vector<const RouteCandidate*> workers;
    ways.clear();
    busy_ways.clear();
    costs.clear();
    workers.clear();
    for (std::size_t i = 0; i < candidates.decode.size(); ++i) {
      if (const auto way = prediction.BestBy(i); way.has_value()) {
        const bool busy = RequestsOf(candidates.decode[i]) + 1 > most;
        (busy ? busy_ways : ways).push_back(*way);
      }
    }
    if (ways.empty()) {
      ways.swap(busy_ways);
    }
    if (ways.empty()) {
      return NoPrefillWorker();
    }
    PreferWhole(ways);
    PreferDevice(ways, candidates);
    for (const RouteOption& way : ways) {
      costs.push_back(way.cost);
      workers.push_back(&candidates.decode[way.decode]);
    }
    return prediction.Decide(ways[ChooseNearEqual(costs, workers, request.random)]);
  }

 private:
  static std::uint32_t CachedTokens(const RouteOption& way, const RouteCandidates& candidates) {
    return way.prefill.has_value() ? candidates.prefill[*way.prefill].cached_tokens
                                   : candidates.decode[way.decode].cached_tokens;
  }

  static double NearLowest(const std::vector<RouteOption>& ways) {
    const auto lowest = std::min_element(
        ways.begin(), ways.end(),
        [](const RouteOption& a, const RouteOption& b) { return a.cost < b.cost; });
    return lowest->cost * (1 + kNearEqual);
  }

  // Of ways that are as good, none that loads what another has on its device already: what others
  // need disks and copies for is in no prediction.
  static void PreferDevice(std::vector<RouteOption>& ways, const RouteCandidates& candidates) {
    if (std::none_of(ways.begin(), ways.end(), [](const RouteOption& way) { return way.loads; })) {
      return;
    }
    const double limit = NearLowest(ways);
    std::uint32_t on_device = 0;  // leading tokens
    for (const RouteOption& way : ways) {
      if (way.cost <= limit && !way.loads) {
        on_device = std::max(on_device, CachedTokens(way, candidates));
      }
    }
    std::erase_if(ways, [&](const RouteOption& way) {
      return way.loads && CachedTokens(way, candidates) <= on_device;
    });
  }

  // Of ways that are as good, those that move no blocks: what others need the network for is in no
  // prediction. So a prefix that a decode worker holds draws its requests, though a prefill worker
  // that holds it too would be nearly as quick.
  static void PreferWhole(std::vector<RouteOption>& ways) {
    const double limit = NearLowest(ways);
    const bool whole = std::any_of(ways.begin(), ways.end(), [limit](const RouteOption& way) {
      return !way.prefill.has_value() && way.cost <= limit;
    });
    if (whole) {
      std::erase_if(ways, [](const RouteOption& way) { return way.prefill.has_value(); });
    }
  }
};

}  // namespace

std::unique_ptr<RoutePolicy> MakePrefixPolicy() {
  return std::make_unique<PrefixPolicy>();
}

}  // namespace baton
