#pragma once

#include "planner/cost_model.h"
#include "router/route_policy.h"

namespace baton {

// What this router has given a worker and the worker's last report may not know of yet. Added when
// the decision is made, so that the next one sees it. Plain values; no thread rule.
struct InFlightLoad {
  double prefill_tokens = 0;  // uncached prompt tokens: until the first token has come
  double sequences = 0;       // until the request has ended
  double context_tokens = 0;  // of these together; prompts alone

  InFlightLoad& operator+=(const InFlightLoad& other) {
    prefill_tokens += other.prefill_tokens;
    sequences += other.sequences;
    context_tokens += other.context_tokens;
    return *this;
  }
  InFlightLoad& operator-=(const InFlightLoad& other) {
    return *this += {-other.prefill_tokens, -other.sequences, -other.context_tokens};
  }
};

// What one request gives to the two workers it was routed to.
struct RoutedLoad {
  InFlightLoad on_decode;
  InFlightLoad on_prefill;  // nothing when colocated
};

inline RoutedLoad LoadOf(const RouteRequest& request, const RouteDecision& decision) {
  const auto prompt = static_cast<double>(request.prompt_tokens);
  const double uncached = PromptTokens{prompt, double{1} * decision.cached_tokens}.uncached();
  const bool split = !decision.prefill.empty();
  return {.on_decode = {.prefill_tokens = split ? 0 : uncached,
                        .sequences = 1,
                        .context_tokens = prompt},
          .on_prefill = {.prefill_tokens = split ? uncached : 0}};
}

// A sequence counts as running from the start: it will, and its room is taken.
inline WorkerLoad WithInFlight(const WorkerLoad& reported, const InFlightLoad& more) {
  const double running = reported.running_sequences + more.sequences;
  const double context = reported.running_sequences * reported.depth_tokens + more.context_tokens;
  return {.queued_prefill_tokens = reported.queued_prefill_tokens + more.prefill_tokens,
          .running_sequences = running,
          .depth_tokens = running > 0 ? context / running : 0};
}

}  // namespace baton
