#include "router/route_chooser.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

// A worker that comes back is noticed within a report or two.
constexpr std::chrono::milliseconds kRetryAfter{1000};

std::uint64_t RandomBits() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

WorkerLoad LoadOf(const WorkerCounts& counts) {
  const auto running = static_cast<double>(counts.others_decoding + counts.decoding.now());
  const auto context =
      static_cast<double>(counts.others_context_tokens + counts.context_tokens.now());
  return {.queued_prefill_tokens =
              static_cast<double>(counts.others_prefill_tokens + counts.prefill_tokens.now()),
          .running_sequences = running,
          .depth_tokens = running > 0 ? context / running : 0};
}

RouteCandidate CandidateOf(const UsableWorker& worker, const TieredMatches& matches) {
  return {
      .worker = worker.slot,
      .identity = worker.identity,
      .layout = worker.layout,
      .cached_tokens = matches.device.of(worker.slot) * static_cast<std::uint32_t>(kBlockTokens),
      .in_flight = static_cast<std::uint32_t>(worker.counts->in_flight.load()),
      .dispatched = worker.counts->dispatched.load(),
      .load = LoadOf(*worker.counts),
      .costs = worker.costs.get(),
      .transport = worker.transport.has_value() ? &*worker.transport : nullptr};
}

// In a pass of its own: on a fleet that has one tier, making candidates takes no longer for it.
void UseTiers(const FleetView& view,
              const TieredMatches& matches,
              std::size_t prompt_tokens,
              std::vector<RouteCandidate>& candidates) {
  if (matches.runs.empty()) {
    return;
  }
  for (RouteCandidate& candidate : candidates) {
    if (const HeldRuns* held = matches.beyond_device(candidate.worker); held != nullptr) {
      UsePrefix(*held, view.by_slot[candidate.worker.value()]->loads, prompt_tokens, candidate);
    }
  }
}

}  // namespace

RouteChooser::RouteChooser(Fleet& fleet, const TieredIndex& index, RouteOptions options)
    : fleet_(fleet),
      index_(index),
      options_(options),
      policy_(MakeRoutePolicy(options.policy)),
      colocate_below_tokens_(options.colocate_below_tokens) {}

absl::StatusOr<ChosenRoute> RouteChooser::Choose(const RouteQuery& query) {
  // A thousand workers' candidates are worth keeping from request to request.
  thread_local RouteCandidates candidates;
  thread_local TieredMatches matches;
  const std::shared_ptr<const FleetView> view = fleet_.View();
  index_.Match(query.hashes, matches);
  RETURN_IF_ERROR(FillCandidates(query, *view, matches, candidates));
  const RouteRequest request{.prompt_tokens = query.prompt_tokens,
                             .path = query.path,
                             .session = query.session,
                             .number = requests_.fetch_add(1),
                             .random = RandomBits()};
  RouteOptions options = options_;
  options.colocate_below_tokens = colocate_below_tokens_.load();
  ASSIGN_OR_RETURN(const RouteDecision decision, policy_->Choose(request, candidates, options));

  ChosenRoute route{.decode = view->At(decision.decode),
                    .reason = decision.reason,
                    .cached_tokens = decision.cached_tokens};
  for (const WorkerSlot worker : decision.prefill) {
    route.prefill.push_back(view->At(worker));
  }
  const std::uint64_t uncached =
      query.prompt_tokens - std::min<std::size_t>(query.prompt_tokens, decision.cached_tokens);
  const bool split = !route.prefill.empty();
  route.marks.emplace_back(route.decode->counts,
                           LoadMark::Load{.decoding = query.choices,
                                          .context_tokens = query.choices * query.prompt_tokens,
                                          .prefill_tokens = split ? 0 : uncached});
  if (split) {
    // The decode worker tries them in order, so the first one is taken to have the work. Nothing
    // decodes there.
    route.marks.emplace_back(route.prefill.front()->counts,
                             LoadMark::Load{.prefill_tokens = uncached});
  }
  query_tokens_.fetch_add(query.prompt_tokens);
  CountHits(matches.beyond_device(split ? decision.prefill.front() : decision.decode),
            query.prompt_tokens - uncached);
  return route;
}

// `held`: by the worker that computes the rest; null: on its device, all of it.
void RouteChooser::CountHits(const HeldRuns* held, std::size_t hit_tokens) {
  PerTier<std::uint64_t> in_tier{hit_tokens};
  for (std::size_t tier = 0; held != nullptr && tier < kKvTiers; ++tier) {
    const HeldRun& run = (*held)[tier];
    if (run.blocks * kBlockTokens == hit_tokens) {
      std::transform(run.in_tier.begin(), run.in_tier.end(), in_tier.begin(),
                     [](std::uint32_t blocks) { return blocks * kBlockTokens; });
      break;
    }
  }
  for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
    hit_tokens_[tier].fetch_add(in_tier[tier]);
  }
}

absl::Status RouteChooser::FillCandidates(const RouteQuery& query,
                                          const FleetView& view,
                                          const TieredMatches& matches,
                                          RouteCandidates& candidates) const {
  const auto fits = [&query](const UsableWorker& worker) {
    return query.zone.empty() || worker.zone == query.zone;
  };
  const TimePoint now = Clock::System().Now();
  candidates.decode.clear();
  candidates.prefill.clear();
  candidates.cut_pairs.clear();
  std::size_t tried = 0;
  std::vector<RouteCandidate> avoided;
  for (const auto& worker : view.decode) {
    if (!fits(*worker)) {
      continue;
    }
    if (std::find(query.tried.begin(), query.tried.end(), worker->slot) != query.tried.end()) {
      ++tried;
    } else if (worker->counts->avoid_until.load(std::memory_order_relaxed) > now) {
      avoided.push_back(CandidateOf(*worker, matches));
    } else {
      candidates.decode.push_back(CandidateOf(*worker, matches));
    }
  }
  if (candidates.decode.empty()) {
    candidates.decode = std::move(avoided);  // better than none
  }
  if (candidates.decode.empty() && tried == 0 && !view.decode.empty()) {
    return WithReason(WithRetryAfter(absl::UnavailableError(absl::StrCat(
                                         "no decode worker of zone \"", query.zone, "\" is alive")),
                                     kRetryAfter),
                      "NO_WORKER_IN_ZONE");
  }
  for (const auto& worker : view.prefill) {
    if (fits(*worker)) {
      candidates.prefill.push_back(CandidateOf(*worker, matches));
    }
  }
  UseTiers(view, matches, query.prompt_tokens, candidates.decode);
  UseTiers(view, matches, query.prompt_tokens, candidates.prefill);
  FillCutPairs(view, candidates);
  return absl::OkStatus();
}

void RouteChooser::FillCutPairs(const FleetView& view, RouteCandidates& candidates) const {
  const auto stands = [&view](const PairHealth::End& end) {
    const std::shared_ptr<const UsableWorker> worker = view.At(end.slot);
    return worker != nullptr && worker->instance == end.instance;
  };
  for (const PairHealth::Pair& pair : pairs_.Cut()) {
    if (stands(pair.first) && stands(pair.second)) {
      candidates.cut_pairs.emplace_back(pair.first.slot, pair.second.slot);
    }
  }
}

RouteChooser::Stats RouteChooser::stats() const {
  Stats stats{.query_tokens = query_tokens_.load()};
  for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
    stats.hit_tokens_in[tier] = hit_tokens_[tier].load();
    stats.hit_tokens += stats.hit_tokens_in[tier];
  }
  return stats;
}

}  // namespace baton
