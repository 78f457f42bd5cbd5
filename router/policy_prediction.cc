#include "router/policy_prediction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace baton {
namespace {

// Where nothing is known of a network, transfers decide nothing.
const TransportRate& TransportOf(const RouteCandidate& prefill) {
  static const TransportRate unknown{.name = "", .fixed_seconds = 0, .bytes_per_second = 1e15};
  return prefill.transport != nullptr ? *prefill.transport : unknown;
}

// Bits that are independent of those drawn for another purpose.
std::uint64_t Draw(std::uint64_t random, std::uint64_t purpose) {
  std::uint64_t bits = random + (purpose + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
  return bits ^ bits >> 31;
}

}  // namespace

std::size_t ChooseNearEqual(const std::vector<double>& costs,
                            const std::vector<const RouteCandidate*>& workers,
                            std::uint64_t random) {
  const double limit = *std::min_element(costs.begin(), costs.end()) * (1 + kNearEqual);
  thread_local std::vector<std::size_t> near;
  near.clear();
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (costs[i] <= limit) {
      near.push_back(i);
    }
  }
  // Two different ones, when there are.
  const std::size_t first = Draw(random, 0) % near.size();
  const std::size_t second =
      near.size() == 1 ? first : (first + 1 + Draw(random, 1) % (near.size() - 1)) % near.size();
  const auto had = [&](std::size_t i) {
    return std::make_tuple(workers[near[i]]->in_flight, workers[near[i]]->dispatched);
  };
  return near[had(second) < had(first) ? second : first];
}

thread_local std::vector<RoutePrediction::Prefill> RoutePrediction::spare_;

RoutePrediction::RoutePrediction(const RouteRequest& request,
                                 const RouteCandidates& candidates,
                                 const RouteOptions& options)
    : request_(request), candidates_(candidates), options_(options), fit_(candidates) {
  if (request.path == v1::PATH_COLOCATED || candidates.prefill.empty()) {
    return;
  }
  // Often no decode worker needs one.
  if (std::all_of(candidates.decode.begin(), candidates.decode.end(),
                  [&](const RouteCandidate& decode) {
                    return ReasonToColocate(request, decode, options).has_value();
                  })) {
    return;
  }
  prefill_.swap(spare_);
  prefill_.resize(candidates.prefill.size());
  for (std::size_t i = 0; i < prefill_.size(); ++i) {
    PredictPrefill(i);
  }
  for (const RouteCandidate& prefill : candidates.prefill) {
    if (std::none_of(best_.begin(), best_.end(), [&prefill](const LayoutBest& best) {
          return best.layout == prefill.layout;
        })) {
      best_.push_back({prefill.layout, ChooseAmong(prefill.layout)});
    }
  }
}

RoutePrediction::~RoutePrediction() {
  if (prefill_.capacity() > spare_.capacity()) {
    prefill_.swap(spare_);
  }
}

PromptTokens RoutePrediction::PromptOn(const RouteCandidate& worker) const {
  const auto tokens = static_cast<double>(request_.prompt_tokens);
  return {.tokens = tokens,
          .cached_tokens = tokens - static_cast<double>(UncachedTokens(request_, worker))};
}

void RoutePrediction::PredictPrefill(std::size_t index) {
  const RouteCandidate& worker = candidates_.prefill[index];
  Prefill& prefill = prefill_[index];
  const PromptTokens prompt = PromptOn(worker);
  prefill.time = worker.costs->PredictColocated(prompt, worker.load);
  prefill.time.fixed_seconds = TransportOf(worker).fixed_seconds;
  prefill.chunks = worker.costs->PrefillChunks(prompt.uncached(), worker.load.running_sequences);
  const double exposed = worker.costs->ExposedTransferSeconds(
      TransportOf(worker), prompt.tokens, prefill.time.prefill_seconds, prefill.chunks);
  prefill.cost = worker.load_seconds + prefill.time.first_token_seconds() + exposed +
                 kStallWeight * prefill.time.stall_seconds;
}

std::size_t RoutePrediction::ChooseAmong(std::uint32_t layout) const {
  thread_local std::vector<double> costs;
  thread_local std::vector<const RouteCandidate*> workers;
  costs.clear();
  workers.clear();
  for (std::size_t i = 0; i < prefill_.size(); ++i) {
    if (candidates_.prefill[i].layout == layout) {
      costs.push_back(prefill_[i].cost);
      workers.push_back(&candidates_.prefill[i]);
    }
  }
  // Another draw than the decode worker's, or the two would go together.
  const RouteCandidate* chosen = workers[ChooseNearEqual(costs, workers, ~request_.random)];
  return static_cast<std::size_t>(chosen - candidates_.prefill.data());
}

std::optional<std::size_t> RoutePrediction::BestPrefillFor(const RouteCandidate& decode) const {
  const auto best = std::find_if(best_.begin(), best_.end(), [&decode](const LayoutBest& layout) {
    return layout.layout == decode.layout;
  });
  if (best == best_.end()) {
    return std::nullopt;
  }
  if (fit_.Fits(decode, candidates_.prefill[best->prefill])) {
    return best->prefill;
  }
  std::optional<std::size_t> other;
  for (std::size_t i = 0; i < prefill_.size(); ++i) {
    if (fit_.Fits(decode, candidates_.prefill[i]) &&
        (!other.has_value() || prefill_[i].cost < prefill_[*other].cost)) {
      other = i;
    }
  }
  return other;
}

double RoutePrediction::PaceSeconds(const RouteCandidate& decode) const {
  const WorkerLoad& load = decode.load;
  const double running = load.running_sequences + 1;
  const double context =
      load.running_sequences * load.depth_tokens + static_cast<double>(request_.prompt_tokens);
  return kPacedTokens * decode.costs->DecodeStepSeconds(running, context / running);
}

RouteOption RoutePrediction::Whole(std::size_t decode, v1::RouteReason reason) const {
  const RouteCandidate& worker = candidates_.decode[decode];
  const FirstTokenTime time = worker.costs->PredictColocated(PromptOn(worker), worker.load);
  const double first_token = worker.load_seconds + time.first_token_seconds();
  return {.decode = decode,
          .reason = reason,
          .loads = worker.load_seconds > 0,
          .first_token_seconds = first_token,
          .cost = first_token + kStallWeight * time.stall_seconds};
}

RouteOption RoutePrediction::Split(std::size_t decode, std::size_t prefill) const {
  const RouteCandidate& computing = candidates_.prefill[prefill];
  const RouteCandidate& receiving = candidates_.decode[decode];
  const Prefill& predicted = prefill_[prefill];
  const double first_token = computing.load_seconds + predicted.time.first_token_seconds();
  const double transfer = computing.costs->ExposedTransferSeconds(
      TransportOf(computing), PromptOn(receiving).uncached(), predicted.time.prefill_seconds,
      predicted.chunks);
  // It loads what it holds in slower tiers while the prompt is computed.
  const double exposed = std::max(transfer, receiving.load_seconds - first_token);
  // Its first tokens share their steps with prompts that the decode worker computes itself.
  double beside = 0;
  if (receiving.load.queued_prefill_tokens > 0) {
    const CostModel& costs = *receiving.costs;
    beside = std::min(costs.PrefillSeconds(receiving.load.queued_prefill_tokens),
                      kPacedTokens * costs.PrefillSeconds(costs.rates().max_batch_tokens));
  }
  return {.decode = decode,
          .prefill = prefill,
          .reason = request_.path == v1::PATH_DISAGGREGATED ? v1::ROUTE_REASON_REQUESTED
                                                            : v1::ROUTE_REASON_PREFILL_QUICKER,
          .loads = computing.load_seconds > 0,
          .first_token_seconds = first_token,
          .cost = first_token + exposed + kStallWeight * predicted.time.stall_seconds + beside};
}

std::optional<RouteOption> RoutePrediction::BestBy(std::size_t decode) const {
  const RouteCandidate& worker = candidates_.decode[decode];
  std::optional<RouteOption> best;
  if (const auto reason = ReasonToColocate(request_, worker, options_); reason.has_value()) {
    best = Whole(decode, *reason);
  } else {
    const std::optional<std::size_t> prefill = BestPrefillFor(worker);
    if (prefill.has_value()) {
      best = Split(decode, *prefill);
    } else if (request_.path == v1::PATH_DISAGGREGATED) {
      return std::nullopt;
    }
    if (request_.path == v1::PATH_UNSPECIFIED) {
      RouteOption whole = Whole(decode, prefill.has_value() ? v1::ROUTE_REASON_DECODE_QUICKER
                                                            : v1::ROUTE_REASON_NO_PREFILL_WORKER);
      whole.cost += (kWholePromptFactor - 1) * whole.first_token_seconds + kWholePromptSeconds;
      if (!best.has_value() || whole.cost < best->cost) {
        best = whole;
      }
    }
  }
  best->cost += PaceSeconds(worker);
  return best;
}

RouteDecision RoutePrediction::Decide(const RouteOption& option) const {
  const RouteCandidate& decode = candidates_.decode[option.decode];
  RouteDecision decision{.decode = decode.worker,
                         .reason = option.reason,
                         .cached_tokens = decode.cached_tokens,
                         .first_token_seconds = option.first_token_seconds};
  if (!option.prefill.has_value()) {
    return decision;
  }
  decision.cached_tokens = candidates_.prefill[*option.prefill].cached_tokens;
  decision.prefill.push_back(candidates_.prefill[*option.prefill].worker);
  // The next best, should the first one fail.
  thread_local std::vector<std::size_t> others;
  others.clear();
  for (std::size_t i = 0; i < prefill_.size(); ++i) {
    if (i != *option.prefill && fit_.Fits(decode, candidates_.prefill[i])) {
      others.push_back(i);
    }
  }
  const std::size_t tries = std::min(others.size(), kMostPrefillTries - 1);
  std::partial_sort(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(tries),
                    others.end(), [this](std::size_t a, std::size_t b) {
                      return std::tie(prefill_[a].cost, a) < std::tie(prefill_[b].cost, b);
                    });
  for (std::size_t i = 0; i < tries; ++i) {
    decision.prefill.push_back(candidates_.prefill[others[i]].worker);
  }
  return decision;
}

}  // namespace baton
