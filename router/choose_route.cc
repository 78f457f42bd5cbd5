#include "router/choose_route.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <tuple>

#include "proto/status_conversion.h"

namespace baton {
namespace {

bool LessLoaded(const WorkerView& a, const WorkerView& b) {
  return std::tie(a.in_flight, a.dispatched, a.number) <
         std::tie(b.in_flight, b.dispatched, b.number);
}

absl::Status NoWorker(const std::string& message, const std::string& reason) {
  // A worker that comes back is noticed within a poll or two.
  constexpr std::chrono::milliseconds kRetryAfter{1000};
  return WithReason(WithRetryAfter(absl::UnavailableError(message), kRetryAfter), reason);
}

std::vector<WorkerView> MatchingPrefill(const FleetView& fleet, const WorkerView& decode) {
  std::vector<WorkerView> matching;
  for (const WorkerView& worker : fleet.prefill) {
    if (worker.layout == decode.layout) {
      matching.push_back(worker);
    }
  }
  std::sort(matching.begin(), matching.end(), LessLoaded);
  return matching;
}

}  // namespace

absl::StatusOr<PlainRouteDecision> ChooseRoute(const PlainRouteRequest& request,
                                               const FleetView& fleet,
                                               const PlainRouteOptions& options) {
  if (fleet.decode.empty()) {
    return NoWorker("no decode worker is alive", "NO_DECODE_WORKER");
  }
  std::vector<WorkerView> decode = fleet.decode;
  std::sort(decode.begin(), decode.end(), LessLoaded);
  if (request.path == v1::PATH_COLOCATED) {
    return PlainRouteDecision{.decode = decode.front(), .reason = v1::ROUTE_REASON_REQUESTED};
  }
  const bool forced = request.path == v1::PATH_DISAGGREGATED;
  if (!forced && request.prompt_tokens < options.colocate_below_tokens) {
    return PlainRouteDecision{.decode = decode.front(), .reason = v1::ROUTE_REASON_SHORT_PROMPT};
  }
  for (const WorkerView& worker : decode) {
    std::vector<WorkerView> prefill = MatchingPrefill(fleet, worker);
    if (!prefill.empty()) {
      return PlainRouteDecision{
          .decode = worker,
          .prefill = std::move(prefill),
          .reason = forced ? v1::ROUTE_REASON_REQUESTED : v1::ROUTE_REASON_PREFILL_QUICKER};
    }
  }
  if (forced) {
    return NoWorker("no prefill worker that fits a decode worker is alive", "NO_PREFILL_WORKER");
  }
  return PlainRouteDecision{.decode = decode.front(), .reason = v1::ROUTE_REASON_NO_PREFILL_WORKER};
}

}  // namespace baton
