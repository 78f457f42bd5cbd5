#include "bench/simulated_fleet.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <queue>
#include <random>
#include <tuple>

#include "bench/simulated_cache.h"
#include "common/check.h"
#include "router/policy_load.h"
#include "router/tiered_index.h"

namespace baton {
namespace {

// kFree: the worker begins with its next prompt, after all else that is due at that time.
enum class EventKind { kPrefilled, kEnded, kFree };

struct Event {
  double seconds = 0;
  std::uint64_t number = 0;  // in the order they were planned in
  EventKind kind = EventKind::kPrefilled;
  std::uint32_t worker = 0;
  std::size_t request = 0;

  bool operator>(const Event& other) const {
    return std::tie(seconds, number) > std::tie(other.seconds, other.number);
  }
};

struct SimulatedWorker {
  explicit SimulatedWorker(const ReplaySetup& setup)
      : cache(setup.blocks_per_worker), host(setup.host_blocks_per_worker) {}

  // The leading blocks that are in either cache.
  HeldRuns Held(std::span<const PrefixHash> chain) const {
    HeldRuns held;
    for (const PrefixHash& block : chain) {
      const auto tier = cache.Holds(block) ? v1::KV_TIER_DEVICE : v1::KV_TIER_HOST;
      if (tier == v1::KV_TIER_HOST && !host.Holds(block)) {
        break;
      }
      // A run of the device's blocks ends with the first one that is not there.
      const bool on_device = held.front().blocks == held.back().blocks;
      for (std::size_t run = tier == v1::KV_TIER_DEVICE && on_device ? 0 : 1; run < held.size();
           ++run) {
        ++held[run].blocks;
        ++held[run].in_tier[tier];
      }
    }
    return held;
  }

  SimulatedCache cache;
  SimulatedCache host;            // what the other one has evicted
  std::deque<std::size_t> queue;  // of requests; the first one is being computed
  WorkerLoad decoding;            // queued_prefill_tokens is unused
  double prefill_seconds = 0;
  // As the router has it.
  InFlightLoad in_flight;
  std::uint32_t requests = 0;
  std::uint64_t dispatched = 0;
};

class Simulation {
 public:
  Simulation(const std::vector<ReplayRequest>& requests,
             const CostModel& costs,
             const ReplaySetup& setup)
      : requests_(requests),
        costs_(costs),
        setup_(setup),
        policy_(MakeRoutePolicy(setup.policy)),
        index_({.most_entries = 4 << 20}),
        tier_loads_(MakeTierLoads(costs, setup)),
        random_(setup.seed),
        workers_(setup.workers, SimulatedWorker(setup)),
        arrivals_(requests.size()),
        loads_(requests.size()) {}

  ReplayResult Run() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (setup_.speed.has_value()) {
        const double arrival = requests_[i].arrival_seconds / *setup_.speed;
        RunUntil(arrival);
        now_ = arrival;
      } else {
        RunAll();
      }
      arrivals_[i] = now_;
      Dispatch(i);
    }
    RunAll();
    return Summarize();
  }

 private:
  static TierLoads MakeTierLoads(const CostModel& costs, const ReplaySetup& setup) {
    PerTier<TransportRate> rates = NominalTierRates();
    rates[v1::KV_TIER_HOST] = setup.host_rate;
    return LoadsOf(rates,
                   static_cast<std::size_t>(kBlockTokens * costs.rates().kv_bytes_per_token));
  }

  void Plan(double seconds, EventKind kind, std::uint32_t worker, std::size_t request) {
    events_.push({seconds, planned_++, kind, worker, request});
  }

  void RunUntil(double seconds) {
    while (!events_.empty() && events_.top().seconds <= seconds) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.seconds;
      switch (event.kind) {
        case EventKind::kPrefilled:
          OnPrefilled(event.worker, event.request);
          break;
        case EventKind::kEnded:
          OnEnded(event.worker, event.request);
          break;
        case EventKind::kFree:
          Compute(event.worker);
          break;
      }
    }
  }
  void RunAll() { RunUntil(std::numeric_limits<double>::infinity()); }

  void Dispatch(std::size_t request) {
    index_.Match(requests_[request].hashes, matches_);
    RouteCandidates candidates;
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      const WorkerSlot slot(i);
      candidates.decode.push_back({.worker = slot,
                                   .identity = i + 1,
                                   .cached_tokens = matches_.device.of(slot) * kBlockTokens,
                                   .in_flight = workers_[i].requests,
                                   .dispatched = workers_[i].dispatched,
                                   .load = WithInFlight({}, workers_[i].in_flight),
                                   .costs = &costs_});
      if (const HeldRuns* held = matches_.beyond_device(slot); held != nullptr) {
        UsePrefix(*held, tier_loads_, requests_[request].prompt_tokens(), candidates.decode.back());
      }
    }
    const RouteRequest wish{.prompt_tokens = requests_[request].prompt_tokens(),
                            .number = request,
                            .random = random_()};
    const RouteDecision decision = policy_->Choose(wish, candidates, {}).value();
    result_.predicted_first_token_seconds += decision.first_token_seconds;
    SimulatedWorker& worker = workers_[decision.decode.value()];
    loads_[request] = LoadOf(wish, decision).on_decode;
    worker.in_flight += loads_[request];
    ++worker.requests;
    ++worker.dispatched;
    worker.queue.push_back(request);
    if (worker.queue.size() == 1) {
      Compute(decision.decode.value());
    }
  }

  // Begins with the first prompt of the queue.
  void Compute(std::uint32_t number) {
    SimulatedWorker& worker = workers_[number];
    const ReplayRequest& request = requests_[worker.queue.front()];
    // It loads where that is quicker than computing, as a router expects of it.
    RouteCandidate used{.load = worker.decoding, .costs = &costs_};
    const HeldRuns held = worker.Held(request.hashes);
    UsePrefix(held, tier_loads_, request.prompt_tokens(), used);
    result_.blocks += request.hashes.size();
    result_.hit_blocks += used.cached_tokens / kBlockTokens;
    result_.loaded_blocks += used.load_seconds > 0 ? held.back().in_tier[v1::KV_TIER_HOST] : 0;
    // Of a prompt that is wholly cached the last token is computed again.
    const std::size_t cached =
        std::min<std::size_t>(used.cached_tokens, request.prompt_tokens() - 1);
    const FirstTokenTime time = costs_.PredictColocated(
        {static_cast<double>(request.prompt_tokens()), static_cast<double>(cached)},
        worker.decoding);
    const double seconds = used.load_seconds + time.first_token_seconds();
    worker.prefill_seconds += seconds;
    Plan(now_ + seconds, EventKind::kPrefilled, number, worker.queue.front());
  }

  void OnPrefilled(std::uint32_t number, std::size_t index) {
    SimulatedWorker& worker = workers_[number];
    const ReplayRequest& request = requests_[index];
    const auto context = static_cast<double>(request.prompt_tokens());
    times_.push_back(now_ - arrivals_[index]);
    const SimulatedCache::Changes changes = worker.cache.Use(request.hashes);
    index_.Add(v1::KV_TIER_DEVICE, WorkerSlot(number), changes.stored);
    // The last one to go is the one that was used last.
    const std::vector<PrefixHash> evicted(changes.removed.rbegin(), changes.removed.rend());
    const SimulatedCache::Changes host_changes = worker.host.Use(evicted);
    index_.Add(v1::KV_TIER_HOST, WorkerSlot(number), host_changes.stored);
    index_.Remove(v1::KV_TIER_HOST, WorkerSlot(number), host_changes.removed);
    index_.Remove(v1::KV_TIER_DEVICE, WorkerSlot(number), changes.removed);

    const InFlightLoad computed{.prefill_tokens = loads_[index].prefill_tokens};
    worker.in_flight -= computed;
    loads_[index] -= computed;
    worker.decoding = WithInFlight(worker.decoding, {.sequences = 1, .context_tokens = context});
    // As long as if those that run now ran all the time. The first token has come already.
    const double steps = request.output_tokens - 1;
    Plan(now_ + steps * costs_.DecodeStepSeconds(worker.decoding.running_sequences,
                                                 worker.decoding.depth_tokens),
         EventKind::kEnded, number, index);
    worker.queue.pop_front();
    if (!worker.queue.empty()) {
      Plan(now_, EventKind::kFree, number, worker.queue.front());
    }
  }

  void OnEnded(std::uint32_t number, std::size_t index) {
    SimulatedWorker& worker = workers_[number];
    const auto context = static_cast<double>(requests_[index].prompt_tokens());
    worker.decoding = WithInFlight(worker.decoding, {.sequences = -1, .context_tokens = -context});
    worker.in_flight -= loads_[index];
    --worker.requests;
  }

  ReplayResult Summarize() {
    const auto count = static_cast<double>(requests_.size());
    result_.requests = requests_.size();
    result_.index_entries = index_.stats().entries;
    result_.predicted_first_token_seconds /= count;
    BATON_CHECK(times_.size() == requests_.size());
    std::sort(times_.begin(), times_.end());
    for (const double seconds : times_) {
      result_.first_token_seconds += seconds / count;
    }
    result_.p99_first_token_seconds = times_[times_.size() * 99 / 100];
    for (const SimulatedWorker& worker : workers_) {
      const auto workers = static_cast<double>(workers_.size());
      result_.busy += worker.prefill_seconds / now_ / workers;
      result_.largest_share =
          std::max(result_.largest_share, static_cast<double>(worker.dispatched) * workers / count);
      result_.cached_blocks += worker.cache.size() + worker.host.size();
    }
    return result_;
  }

  const std::vector<ReplayRequest>& requests_;
  const CostModel& costs_;
  const ReplaySetup setup_;
  const std::unique_ptr<RoutePolicy> policy_;
  TieredIndex index_;
  TieredMatches matches_;
  const TierLoads tier_loads_;
  std::mt19937_64 random_;
  std::vector<SimulatedWorker> workers_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t planned_ = 0;
  double now_ = 0;
  std::vector<double> arrivals_;     // [requests]
  std::vector<InFlightLoad> loads_;  // [requests] what the router still counts of each
  std::vector<double> times_;        // to first tokens
  ReplayResult result_;
};

}  // namespace

std::vector<ReplayRequest> ReplayRequests(const Trace& trace) {
  BATON_CHECK(trace.hashed_tokens == kBlockTokens);
  const PrefixHash root = RootHash({});
  std::vector<ReplayRequest> requests;
  for (const TraceRequest& request : trace.requests) {
    const std::vector<std::uint32_t> numbers =
        MakePromptTokens(request, trace.hashed_tokens, {.tokens = 32'000},
                         /*pad_to_whole_blocks=*/true, /*own_seed=*/0);
    std::vector<TokenId> tokens;
    for (const std::uint32_t number : numbers) {
      tokens.push_back(TokenId(number));
    }
    requests.push_back({.arrival_seconds = std::chrono::duration<double>(request.arrival).count(),
                        .hashes = HashBlocks(root, tokens),
                        .output_tokens = request.output_tokens});
  }
  return requests;
}

ReplayResult Replay(const std::vector<ReplayRequest>& requests,
                    const CostModel& costs,
                    const ReplaySetup& setup) {
  return Simulation(requests, costs, setup).Run();
}

}  // namespace baton
