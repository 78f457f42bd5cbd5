#include "bench/router_decision.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <random>
#include <thread>
#include <vector>

#include "common/block_hash.h"
#include "common/check.h"
#include "router/route_policy.h"
#include "router/tier_loads.h"
#include "router/tiered_index.h"

namespace baton {
namespace {

using Hashes = std::vector<PrefixHash>;
using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kSharedTokens = 1024;
constexpr std::size_t kMostPrompts = 4000;  // more than the processor's caches hold blocks of
constexpr std::size_t kHashed = 200;        // prompts whose hashing is timed

// Processor time of this thread. Decisions wait for nobody, so on a machine of their own they take
// as long by the clock.
double ProcessorMicroseconds() {
  timespec time{};
  BATON_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

double MicrosecondsSince(SteadyClock::time_point begin) {
  return std::chrono::duration<double, std::micro>(SteadyClock::now() - begin).count();
}

// Some 40 us on a processor of 3 GHz: each multiplication waits for the one before.
std::uint64_t Compute(std::uint64_t seed) {
  for (int i = 0; i < 30'000; ++i) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
  }
  return seed;
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

struct Samples {
  std::vector<double> processor_us;
  std::vector<double> clock_us;

  void Append(const Samples& other) {
    processor_us.insert(processor_us.end(), other.processor_us.begin(), other.processor_us.end());
    clock_us.insert(clock_us.end(), other.clock_us.begin(), other.clock_us.end());
  }
  DecisionTimes Times() const {
    return {.p50_us = Percentile(processor_us, 0.5),
            .p99_us = Percentile(processor_us, 0.99),
            .clock_p50_us = Percentile(clock_us, 0.5),
            .clock_p99_us = Percentile(clock_us, 0.99)};
  }
};

class DecisionBench {
 public:
  DecisionBench(const DecisionSetup& setup, const CostModel& costs)
      : setup_(setup), costs_(costs), random_(setup.seed), index_({}) {
    BATON_CHECK(setup.decode_workers > 0);
    transport_ = costs.rates().transports.empty() ? TransportRate{"tcp", 0.001, 1e9}
                                                  : costs.rates().transports.front();
    tier_loads_ =
        LoadsOf(NominalTierRates(),
                static_cast<std::size_t>(kBlockTokens * costs.rates().kv_bytes_per_token));
    FillIndex();
    MakePrompts();
    MakeLoads();
  }

  DecisionFigures Measure() {
    DecisionFigures figures;
    const TieredIndex::Stats stats = index_.stats();
    figures.index_entries = stats.entries;
    figures.index_blocks = stats.blocks;
    figures.index_bytes_per_entry = first_bytes_per_entry_;
    figures.hash_us = MeasureHashing();
    figures.match_us = MeasureMatching();
    Samples machine;
    Samples samples = MeasureChoices(&machine);
    figures.quiet = samples.Times();
    figures.machine = machine.Times();
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> updates{0};
    const SteadyClock::time_point begin = SteadyClock::now();
    std::jthread updater([&] { Update(stop, updates); });
    updates.wait(0);  // it may begin late
    const Samples disturbed = MeasureChoices(nullptr);
    stop.store(true);
    updater.join();
    figures.updates_per_second =
        static_cast<double>(updates.load()) / (MicrosecondsSince(begin) / 1e6);
    figures.with_updates = disturbed.Times();
    samples.Append(disturbed);
    figures.all = samples.Times();
    return figures;
  }

 private:
  std::uint32_t workers() const { return setup_.decode_workers + setup_.prefill_workers; }
  std::uint32_t Below(std::uint64_t count) { return static_cast<std::uint32_t>(random_() % count); }

  Hashes HashesOf(const std::vector<TokenId>& tokens) const { return HashBlocks(root_, tokens); }
  std::vector<TokenId> RandomTokens(std::size_t count) {
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < count; ++i) {
      tokens.push_back(TokenId(Below(50'000)));
    }
    return tokens;
  }

  // Every block on one worker takes the most memory, so that is what bytes are counted of; hot
  // chains come on top.
  void FillIndex() {
    const std::size_t chain_blocks = setup_.prompt_tokens / kBlockTokens;
    for (std::size_t blocks = 0; blocks < setup_.indexed_blocks; blocks += chain_blocks) {
      cached_.push_back(RandomTokens(setup_.prompt_tokens));
      index_.Add(v1::KV_TIER_DEVICE, WorkerSlot(Below(workers())), HashesOf(cached_.back()));
    }
    // Of the one tier that is in use: the others take no more for more blocks.
    const PrefixIndex::Stats stats = index_.stats().tiers[v1::KV_TIER_DEVICE];
    first_bytes_per_entry_ = static_cast<double>(stats.bytes) / static_cast<double>(stats.entries);
    for (std::size_t i = 0; i < 100; ++i) {
      const Hashes chain = HashesOf(cached_[i % cached_.size()]);
      for (int more = 0; more < 4; ++more) {
        index_.Add(v1::KV_TIER_DEVICE, WorkerSlot(Below(workers())), chain);
      }
    }
    std::size_t slower = 0;
    for (std::size_t i = 0; slower < setup_.slower_blocks; ++i, slower += chain_blocks) {
      const Hashes chain = HashesOf(cached_[i % cached_.size()]);
      index_.Add(v1::KV_TIER_HOST, WorkerSlot(Below(workers())), chain);
      index_.Add(v1::KV_TIER_DISK, WorkerSlot(Below(workers())), chain);
    }
    shared_ = RandomTokens(kSharedTokens);
    hot_ = RandomTokens(setup_.prompt_tokens);
    for (std::uint32_t worker = 0; worker < workers(); ++worker) {
      index_.Add(v1::KV_TIER_DEVICE, WorkerSlot(worker), HashesOf(shared_));
      index_.Add(v1::KV_TIER_DEVICE, WorkerSlot(worker), HashesOf(hot_));
    }
  }

  void MakePrompts() {
    const std::size_t count =
        std::clamp<std::size_t>(static_cast<std::size_t>(setup_.decisions), kHashed, kMostPrompts);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<TokenId> tokens;
      switch (i % 4) {
        case 0:
          tokens = cached_[i / 4 % cached_.size()];
          break;
        case 1:
          tokens = hot_;
          break;
        case 2:
          tokens = shared_;
          break;
        default:
          break;
      }
      tokens.resize(std::min(tokens.size(), setup_.prompt_tokens));
      const std::vector<TokenId> own = RandomTokens(setup_.prompt_tokens - tokens.size());
      tokens.insert(tokens.end(), own.begin(), own.end());
      prompts_.push_back(HashesOf(tokens));
      if (i < kHashed) {
        prompt_tokens_.push_back(std::move(tokens));
      }
    }
  }

  void MakeLoads() {
    for (std::uint32_t i = 0; i < workers(); ++i) {
      in_flight_.push_back(Below(9));
      loads_.push_back({.queued_prefill_tokens = 256.0 * Below(4),
                        .running_sequences = 1.0 * in_flight_.back(),
                        .depth_tokens = 100.0 + Below(900)});
    }
  }

  double MeasureHashing() {
    std::vector<double> times;
    std::size_t blocks = 0;
    for (int i = 0; i < 2000; ++i) {
      const auto& tokens = prompt_tokens_[static_cast<std::size_t>(i) % prompt_tokens_.size()];
      const double begin = ProcessorMicroseconds();
      blocks += HashBlocks(root_, tokens).size();
      times.push_back(ProcessorMicroseconds() - begin);
    }
    BATON_CHECK(blocks == 2000 * (setup_.prompt_tokens / kBlockTokens));
    return Percentile(std::move(times), 0.5);
  }

  double MeasureMatching() {
    std::vector<double> times;
    TieredMatches matches;
    for (int i = 0; i < 4000; ++i) {
      const Hashes& prompt = prompts_[static_cast<std::size_t>(i) % prompts_.size()];
      const double begin = ProcessorMicroseconds();
      index_.Match(prompt, matches);
      times.push_back(ProcessorMicroseconds() - begin);
    }
    return Percentile(std::move(times), 0.5);
  }

  RouteCandidate Candidate(std::uint32_t number, const TieredMatches& matches) const {
    const WorkerSlot slot(number);
    return {.worker = slot,
            .identity = number + 1,
            .layout = 1,
            .cached_tokens = matches.device.of(slot) * kBlockTokens,
            .in_flight = in_flight_[number],
            .dispatched = number,
            .load = loads_[number],
            .costs = &costs_,
            .transport = &transport_};
  }

  // As RouteChooser does.
  void UseTiers(const TieredMatches& matches, std::vector<RouteCandidate>& candidates) const {
    if (matches.runs.empty()) {
      return;
    }
    for (RouteCandidate& candidate : candidates) {
      if (const HeldRuns* held = matches.beyond_device(candidate.worker); held != nullptr) {
        UsePrefix(*held, tier_loads_, setup_.prompt_tokens, candidate);
      }
    }
  }

  // `machine`: where times of Compute go, in turn with the decisions'; null: nowhere.
  Samples MeasureChoices(Samples* machine) {
    const auto policy = MakeRoutePolicy(RoutePolicyKind::kPrefix);
    Samples samples;
    TieredMatches matches;
    RouteCandidates candidates;
    std::size_t split = 0;
    for (int i = 0; i < setup_.decisions; ++i) {
      const Hashes& prompt = prompts_[static_cast<std::size_t>(i) % prompts_.size()];
      const RouteRequest request{.prompt_tokens = setup_.prompt_tokens,
                                 .number = static_cast<std::uint64_t>(i),
                                 .random = random_()};
      const SteadyClock::time_point begin = SteadyClock::now();
      const double processor_begin = ProcessorMicroseconds();
      index_.Match(prompt, matches);
      candidates.decode.clear();
      candidates.prefill.clear();
      for (std::uint32_t worker = 0; worker < workers(); ++worker) {
        (worker < setup_.decode_workers ? candidates.decode : candidates.prefill)
            .push_back(Candidate(worker, matches));
      }
      UseTiers(matches, candidates.decode);
      UseTiers(matches, candidates.prefill);
      const auto decision = policy->Choose(request, candidates, {});
      samples.processor_us.push_back(ProcessorMicroseconds() - processor_begin);
      samples.clock_us.push_back(MicrosecondsSince(begin));
      split += decision->prefill.empty() ? 0 : 1;
      if (machine != nullptr) {
        const SteadyClock::time_point arithmetic = SteadyClock::now();
        const double processor_arithmetic = ProcessorMicroseconds();
        computed_ = Compute(computed_);
        machine->processor_us.push_back(ProcessorMicroseconds() - processor_arithmetic);
        machine->clock_us.push_back(MicrosecondsSince(arithmetic));
      }
    }
    BATON_CHECK(setup_.prefill_workers == 0 || split > 0);
    return samples;
  }

  // Workers store chains and evict what they stored a while ago.
  void Update(const std::atomic<bool>& stop, std::atomic<std::uint64_t>& updates) const {
    std::mt19937_64 random(setup_.seed + 1);
    constexpr std::size_t kKept = 64;
    std::vector<std::pair<WorkerSlot, Hashes>> kept(kKept);
    for (std::size_t i = 0; !stop.load(); ++i) {
      auto& [worker, chain] = kept[i % kKept];
      index_.Remove(v1::KV_TIER_DEVICE, worker, chain);
      std::uint64_t done = chain.size();
      worker = WorkerSlot(static_cast<std::uint32_t>(random() % workers()));
      chain.resize(64);
      for (PrefixHash& hash : chain) {
        for (std::uint8_t& byte : hash.bytes) {
          byte = static_cast<std::uint8_t>(random());
        }
      }
      index_.Add(v1::KV_TIER_DEVICE, worker, chain);
      done += chain.size();
      updates.fetch_add(done);
      updates.notify_one();
    }
  }

  const DecisionSetup setup_;
  const CostModel& costs_;
  std::mt19937_64 random_;
  mutable TieredIndex index_;  // thread-safe
  TransportRate transport_;
  TierLoads tier_loads_;
  const PrefixHash root_ = RootHash({});
  std::vector<std::vector<TokenId>> cached_;  // chains on one worker, some on five
  std::vector<TokenId> shared_;               // on all
  std::vector<TokenId> hot_;                  // on all, as long as a prompt
  std::vector<std::vector<TokenId>> prompt_tokens_;
  std::vector<Hashes> prompts_;
  std::vector<std::uint32_t> in_flight_;
  std::vector<WorkerLoad> loads_;
  double first_bytes_per_entry_ = 0;
  volatile std::uint64_t computed_ = 1;  // so that nobody leaves Compute out
};

}  // namespace

DecisionFigures MeasureDecisions(const DecisionSetup& setup, const CostModel& costs) {
  return DecisionBench(setup, costs).Measure();
}

}  // namespace baton
