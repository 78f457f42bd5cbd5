#include "router/policy_rules.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "proto/status_conversion.h"

namespace baton {
namespace {

absl::Status NoWorker(const std::string& message, const std::string& reason) {
  // A worker that comes back is noticed within a poll or two.
  constexpr std::chrono::milliseconds kRetryAfter{1000};
  return WithReason(WithRetryAfter(absl::UnavailableError(message), kRetryAfter), reason);
}

}  // namespace

PrefillFit::PrefillFit(const RouteCandidates& candidates)
    : candidates_(candidates), cuts_(candidates.cut_pairs) {
  std::sort(cuts_.begin(), cuts_.end());
  for (const RouteCandidate& prefill : candidates.prefill) {
    // Nearly always all are of one layout.
    if (layouts_.empty() || layouts_.back() != prefill.layout) {
      layouts_.push_back(prefill.layout);
    }
  }
  std::sort(layouts_.begin(), layouts_.end());
}

bool PrefillFit::IsCut(WorkerSlot decode, WorkerSlot prefill) const {
  return !cuts_.empty() &&
         std::binary_search(cuts_.begin(), cuts_.end(), std::make_pair(decode, prefill));
}

bool PrefillFit::HasCuts(const RouteCandidate& decode) const {
  if (cuts_.empty()) {
    return false;
  }
  const auto first =
      std::lower_bound(cuts_.begin(), cuts_.end(), std::make_pair(decode.worker, WorkerSlot(0)));
  return first != cuts_.end() && first->first == decode.worker;
}

bool PrefillFit::AnyFits(const RouteCandidate& decode) const {
  if (!std::binary_search(layouts_.begin(), layouts_.end(), decode.layout)) {
    return false;
  }
  return !HasCuts(decode) ||
         std::any_of(candidates_.prefill.begin(), candidates_.prefill.end(),
                     [&](const RouteCandidate& prefill) { return Fits(decode, prefill); });
}

double MostRequests(const std::vector<RouteCandidate>& decode, double always) {
  double requests = 1;
  for (const RouteCandidate& worker : decode) {
    requests += RequestsOf(worker);
  }
  return std::max(always, std::ceil(kBusyFactor * requests / static_cast<double>(decode.size())));
}

absl::Status NoDecodeWorker() {
  return NoWorker("no decode worker is alive", "NO_DECODE_WORKER");
}

absl::Status NoPrefillWorker() {
  return NoWorker("no prefill worker that fits a decode worker is alive", "NO_PREFILL_WORKER");
}

RouteDecision DecideByLength(
    const RouteRequest& request,
    const RouteCandidate& decode,
    const RouteCandidates& candidates,
    const RouteOptions& options,
    const std::function<bool(const RouteCandidate&, const RouteCandidate&)>& order) {
  RouteDecision decision{.decode = decode.worker, .cached_tokens = decode.cached_tokens};
  if (const auto reason = ReasonToColocate(request, decode, options); reason.has_value()) {
    decision.reason = *reason;
    return decision;
  }
  const PrefillFit fit(candidates);
  std::vector<const RouteCandidate*> fitting;
  for (const RouteCandidate& prefill : candidates.prefill) {
    if (fit.Fits(decode, prefill)) {
      fitting.push_back(&prefill);
    }
  }
  if (fitting.empty()) {
    decision.reason = v1::ROUTE_REASON_NO_PREFILL_WORKER;
    return decision;
  }
  const std::size_t tries = std::min(fitting.size(), kMostPrefillTries);
  std::partial_sort(
      fitting.begin(), fitting.begin() + static_cast<std::ptrdiff_t>(tries), fitting.end(),
      [&order](const RouteCandidate* a, const RouteCandidate* b) { return order(*a, *b); });
  for (std::size_t i = 0; i < tries; ++i) {
    decision.prefill.push_back(fitting[i]->worker);
  }
  decision.cached_tokens = fitting.front()->cached_tokens;
  decision.reason = request.path == v1::PATH_DISAGGREGATED ? v1::ROUTE_REASON_REQUESTED
                                                           : v1::ROUTE_REASON_PREFILL_QUICKER;
  return decision;
}

}  // namespace baton
