#pragma once

#include <map>
#include <random>
#include <vector>

#include "router/policy_load.h"
#include "router/policy_prediction.h"
#include "router/route_policy.h"

// What the tests of policies choose among: workers of known costs.

namespace baton {

inline constexpr v1::Path kAuto = v1::PATH_UNSPECIFIED;
inline constexpr v1::Path kWhole = v1::PATH_COLOCATED;
inline constexpr v1::Path kSplit = v1::PATH_DISAGGREGATED;

// A prompt takes tokens / rate, a step 10 ms and 1 ms for each sequence, at any depth.
inline CostModel Costs(double tokens_per_second) {
  MeasuredRates rates{.source = "test", .kv_bytes_per_token = 1000, .layers = 10};
  rates.prefill = {{.prompt_tokens = 1000, .tokens_per_second = tokens_per_second}};
  for (const double batch : {1.0, 8.0}) {
    for (const double depth : {100.0, 1000.0}) {
      rates.decode.push_back({batch, depth, 0.010 + 0.001 * batch});
    }
  }
  return *CostModel::Fit(rates);
}

inline const CostModel& Usual() {
  static const CostModel costs = Costs(1000);
  return costs;
}
inline const CostModel& Slow() {
  static const CostModel costs = Costs(500);
  return costs;
}
inline const TransportRate kNetwork{.name = "tcp", .fixed_seconds = 0.004, .bytes_per_second = 1e8};

inline RouteCandidate Worker(std::uint32_t slot, std::uint32_t layout = 1) {
  return {.worker = WorkerSlot(slot), .layout = layout, .costs = &Usual(), .transport = &kNetwork};
}

inline std::vector<RouteCandidate> Workers(std::uint32_t first, std::uint32_t count) {
  std::vector<RouteCandidate> workers;
  for (std::uint32_t i = 0; i < count; ++i) {
    workers.push_back(Worker(first + i));
  }
  return workers;
}

inline RouteDecision ChooseBy(RoutePolicyKind kind,
                              const RouteRequest& request,
                              const RouteCandidates& candidates) {
  return MakeRoutePolicy(kind)->Choose(request, candidates, {}).value();
}

// Requests that are under way until told otherwise, as a router keeps them.
struct Burst {
  RoutePolicyKind kind;
  RouteCandidates candidates;
  std::map<WorkerSlot, InFlightLoad> load = {};
  std::map<WorkerSlot, int> decode_share = {};
  std::map<WorkerSlot, int> prefill_share = {};

  RouteDecision Send(RouteRequest request, std::mt19937_64& generator) {
    RouteCandidates now = candidates;
    for (auto* workers : {&now.decode, &now.prefill}) {
      for (RouteCandidate& worker : *workers) {
        worker.load = WithInFlight(worker.load, load[worker.worker]);
        worker.in_flight =
            static_cast<std::uint32_t>(decode_share[worker.worker] + prefill_share[worker.worker]);
        worker.dispatched = worker.in_flight;
      }
    }
    request.random = generator();
    const RouteDecision decision = ChooseBy(kind, request, now);
    const RoutedLoad more = LoadOf(request, decision);
    load[decision.decode] += more.on_decode;
    ++decode_share[decision.decode];
    if (!decision.prefill.empty()) {
      load[decision.prefill.front()] += more.on_prefill;
      ++prefill_share[decision.prefill.front()];
    }
    return decision;
  }
};

}  // namespace baton
