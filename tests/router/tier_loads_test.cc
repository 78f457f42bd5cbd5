#include "router/tier_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "router/policy_prediction.h"

namespace baton {
namespace {

constexpr v1::KvTier kDevice = v1::KV_TIER_DEVICE;
constexpr v1::KvTier kHost = v1::KV_TIER_HOST;
constexpr v1::KvTier kDisk = v1::KV_TIER_DISK;

// A token of a prompt takes 1 ms, a step 10 ms, half of it also where it computes a prompt as well.
const CostModel& Costs() {
  static const CostModel costs = [] {
    MeasuredRates rates{
        .source = "test", .kv_bytes_per_token = 1000, .layers = 10, .fixed_share_in_prefill = 0.5};
    rates.prefill = {{.prompt_tokens = 1000, .tokens_per_second = 1000}};
    rates.decode = {{1, 100, 0.010}, {8, 100, 0.010}, {1, 1000, 0.010}, {8, 1000, 0.010}};
    return *CostModel::Fit(rates);
  }();
  return costs;
}
const TransportRate kNetwork{.name = "tcp", .fixed_seconds = 0.004, .bytes_per_second = 1e8};

// A block takes 1 ms out of host memory, 8 ms off the disk, and 16 ms to compute.
const TierLoads kLoads = {TierLoad{}, TierLoad{.fixed_seconds = 0.001, .seconds_per_block = 0.001},
                          TierLoad{.fixed_seconds = 0.010, .seconds_per_block = 0.008}};

// Blocks on the device, then those in host memory, then those on disk.
HeldRuns Held(std::uint32_t device, std::uint32_t host, std::uint32_t disk) {
  return {HeldRun{device, {device, 0, 0}}, HeldRun{device + host, {device, host, 0}},
          HeldRun{device + host + disk, {device, host, disk}}};
}

RouteCandidate Worker(std::uint32_t slot) {
  return {.worker = WorkerSlot(slot), .layout = 1, .costs = &Costs(), .transport = &kNetwork};
}

struct Used {
  std::uint32_t tokens;
  double load_seconds;
};
Used Use(const HeldRuns& held, const TierLoads& loads, std::size_t prompt_tokens = 1600) {
  RouteCandidate worker = Worker(0);
  UsePrefix(held, loads, prompt_tokens, worker);
  return {worker.cached_tokens, worker.load_seconds};
}

TEST(UsePrefix, LoadsWhatIsQuickerToLoadThanToCompute) {
  const Used all = Use(Held(10, 20, 30), kLoads);
  EXPECT_EQ(all.tokens, 960u);
  EXPECT_NEAR(all.load_seconds, 0.001 + 20 * 0.001 + 0.010 + 30 * 0.008, 1e-6);
  const Used whole_prompt = Use(Held(0, 100, 0), kLoads);
  EXPECT_EQ(whole_prompt.tokens, 1600u);
  EXPECT_NEAR(whole_prompt.load_seconds, 0.101, 1e-6);
  const Used device = Use(Held(10, 0, 0), kLoads);
  EXPECT_EQ(device.tokens, 160u);
  EXPECT_EQ(device.load_seconds, 0);
}

// T66: host hits are not over-counted. What is slower to load than to compute counts as nothing,
// and takes nothing from what is quicker.
TEST(UsePrefix, WhatIsSlowerToLoadThanToComputeCountsAsNothing) {
  TierLoads loads = kLoads;
  loads[kDisk].seconds_per_block = 0.017;
  const Used without_disk = Use(Held(10, 20, 30), loads);
  EXPECT_EQ(without_disk.tokens, 480u);
  EXPECT_NEAR(without_disk.load_seconds, 0.021, 1e-6);
  loads[kHost].seconds_per_block = 0.017;
  const Used device = Use(Held(10, 20, 30), loads);
  EXPECT_EQ(device.tokens, 160u);
  EXPECT_EQ(device.load_seconds, 0);
  EXPECT_EQ(Use(Held(0, 1, 0), loads).tokens, 0u);
  // The fixed part alone is too much for a block.
  loads[kHost] = {.fixed_seconds = 0.020, .seconds_per_block = 0};
  EXPECT_EQ(Use(Held(0, 1, 0), loads).tokens, 0u);
  EXPECT_EQ(Use(Held(0, 2, 0), loads).tokens, 32u);
}

// Steps of running sequences make computing slower, and so loading worth more.
TEST(UsePrefix, ComparesWithComputingBesideWhatRuns) {
  TierLoads loads = kLoads;
  loads[kHost] = {.fixed_seconds = 0, .seconds_per_block = 0.017};
  RouteCandidate worker = Worker(0);
  UsePrefix(Held(0, 100, 0), loads, 1600, worker);
  EXPECT_EQ(worker.cached_tokens, 0u);
  worker.load = {.running_sequences = 200, .depth_tokens = 500};  // 56 rows of a step are left
  UsePrefix(Held(0, 100, 0), loads, 1600, worker);
  EXPECT_EQ(worker.cached_tokens, 1600u);
}

TEST(TierLoads, AreMadeOfRatesAndTheSizeOfABlock) {
  PerTier<TransportRate> rates = NominalTierRates();
  rates[kHost] = {.name = "host", .fixed_seconds = 0.5, .bytes_per_second = 100};
  const TierLoads loads = LoadsOf(rates, 200);
  EXPECT_EQ(loads[kHost].fixed_seconds, 0.5);
  EXPECT_EQ(loads[kHost].seconds_per_block, 2);
  EXPECT_EQ(loads[kDevice].seconds_per_block, 0);
  EXPECT_GT(loads[kDisk].seconds_per_block, 0);
  EXPECT_LT(NominalTierRates()[kDisk].bytes_per_second, NominalTierRates()[kHost].bytes_per_second);
}

RouteDecision Choose(const RouteCandidates& candidates,
                     std::size_t prompt_tokens,
                     std::uint64_t random) {
  return MakeRoutePolicy(RoutePolicyKind::kPrefix)
      ->Choose({.prompt_tokens = prompt_tokens, .random = random}, candidates, {})
      .value();
}

// The decode workers that a request gets, whatever its random bits.
std::set<std::uint32_t> Choices(const RouteCandidates& candidates, std::size_t prompt_tokens) {
  std::mt19937_64 generator(1);
  std::set<std::uint32_t> choices;
  for (int i = 0; i < 200; ++i) {
    choices.insert(Choose(candidates, prompt_tokens, generator()).decode.value());
  }
  return choices;
}

// What the index says of three workers, as a router's candidates.
RouteCandidates CandidatesOf(const TieredIndex& index,
                             const std::vector<PrefixHash>& prompt,
                             const TierLoads& loads) {
  TieredMatches matches;
  index.Match(prompt, matches);
  RouteCandidates candidates;
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    RouteCandidate& worker = candidates.decode.emplace_back(Worker(slot));
    worker.cached_tokens = matches.device.of(worker.worker) * kBlockTokens;
    if (const HeldRuns* held = matches.beyond_device(worker.worker); held != nullptr) {
      UsePrefix(*held, loads, prompt.size() * kBlockTokens, worker);
    }
  }
  return candidates;
}

// T66, both halves: the device of A before the disk of B, and the disk of B before cold C, be
// loading as cheap as nothing or worth half the prompt.
TEST(PrefixPolicy, TheDeviceOfOneBeforeTheDiskOfAnotherBeforeNothing) {
  const std::vector<PrefixHash> prompt =
      HashBlocks({}, std::vector<TokenId>(30 * kBlockTokens, TokenId(3)));
  for (const TierLoad disk : {TierLoad{0, 1e-9}, kLoads[kDisk]}) {
    TierLoads loads = kLoads;
    loads[kDisk] = disk;
    TieredIndex index({});
    index.Add(kDevice, WorkerSlot(0), prompt);
    index.Add(kDisk, WorkerSlot(1), prompt);
    EXPECT_THAT(Choices(CandidatesOf(index, prompt, loads), 480), testing::ElementsAre(0));
    index.Remove(kDevice, WorkerSlot(0), prompt);
    EXPECT_THAT(Choices(CandidatesOf(index, prompt, loads), 480), testing::ElementsAre(1));
    index.Remove(kDisk, WorkerSlot(1), prompt);
    EXPECT_THAT(Choices(CandidatesOf(index, prompt, loads), 480), testing::SizeIs(3));
  }
}

TEST(PrefixPolicy, AHostHitThatIsSlowerToLoadThanToComputeDrawsNothing) {
  const std::vector<PrefixHash> prompt =
      HashBlocks({}, std::vector<TokenId>(30 * kBlockTokens, TokenId(3)));
  TierLoads loads = kLoads;
  loads[kHost].seconds_per_block = 0.020;
  TieredIndex index({});
  index.Add(kHost, WorkerSlot(1), prompt);
  const RouteCandidates candidates = CandidatesOf(index, prompt, loads);
  EXPECT_THAT(Choices(candidates, 480), testing::SizeIs(3));
  EXPECT_EQ(Choose(candidates, 480, 1).cached_tokens, 0u);
}

TEST(PrefixPolicy, LoadingCountsAsTimeToTheFirstToken) {
  RouteCandidates candidates{.decode = {Worker(0), Worker(1)}};
  candidates.decode[0].cached_tokens = 320;
  candidates.decode[1].cached_tokens = 400;
  EXPECT_THAT(Choices(candidates, 500), testing::ElementsAre(1));
  candidates.decode[1].load_seconds = 0.125;  // 80 tokens more are worth 80 ms
  EXPECT_THAT(Choices(candidates, 500), testing::ElementsAre(0));
  candidates.decode[0].cached_tokens = 0;
  EXPECT_THAT(Choices(candidates, 500), testing::ElementsAre(1));
  EXPECT_NEAR(Choose(candidates, 500, 1).first_token_seconds, 0.125 + 0.100, 1e-6);
}

TEST(PrefixPolicy, LoadingOfAPrefillWorkerCountsToo) {
  RouteCandidates candidates{.decode = {Worker(0)}, .prefill = {Worker(10), Worker(11)}};
  candidates.prefill[0].cached_tokens = 800;
  candidates.prefill[0].load_seconds = 0.5;
  candidates.prefill[1].cached_tokens = 400;
  for (std::uint64_t random = 0; random < 50; ++random) {
    const RouteDecision decision = Choose(candidates, 1000, random);
    ASSERT_EQ(decision.prefill.front(), WorkerSlot(11));
    ASSERT_NEAR(decision.first_token_seconds, 0.600 + kNetwork.fixed_seconds, 1e-6);
  }
  candidates.prefill[0].load_seconds = 0.25;
  EXPECT_EQ(Choose(candidates, 1000, 1).prefill.front(), WorkerSlot(10));
  EXPECT_NEAR(Choose(candidates, 1000, 1).first_token_seconds,
              0.25 + 0.200 + kNetwork.fixed_seconds, 1e-6);
}

// The decode worker of a split prompt loads its part while the other is computed: only what takes
// longer counts.
TEST(PrefixPolicy, LoadingBesideARemotePrefillCountsWhereItIsLonger) {
  RouteCandidates candidates{.decode = {Worker(0), Worker(1)}, .prefill = {Worker(10)}};
  candidates.decode[0].cached_tokens = candidates.decode[1].cached_tokens = 400;
  candidates.prefill[0].cached_tokens = 400;
  candidates.decode[1].load_seconds = 0.25;
  const auto choices = [&] {
    std::set<std::uint32_t> workers;
    std::mt19937_64 generator(1);
    for (int i = 0; i < 200; ++i) {
      const RouteRequest request{
          .prompt_tokens = 1000, .path = v1::PATH_DISAGGREGATED, .random = generator()};
      workers.insert(MakeRoutePolicy(RoutePolicyKind::kPrefix)
                         ->Choose(request, candidates, {})
                         ->decode.value());
    }
    return workers;
  };
  EXPECT_THAT(choices(), testing::ElementsAre(0, 1));
  candidates.decode[1].load_seconds = 2;
  EXPECT_THAT(choices(), testing::ElementsAre(0));
}

// Costs within 5% are as good: of such ways none loads what another has at hand, but one that has
// more of the prompt may.
TEST(PrefixPolicy, AmongNearEqualsNobodyLoadsWhatAnotherHas) {
  RouteCandidates candidates{.decode = {Worker(0), Worker(1), Worker(2)}};
  candidates.decode[0].cached_tokens = candidates.decode[1].cached_tokens = 320;
  candidates.decode[1].load_seconds = 0.002f;
  EXPECT_THAT(Choices(candidates, 500), testing::ElementsAre(0));
  candidates.decode[1].cached_tokens = 336;
  candidates.decode[1].load_seconds = 0.010f;
  EXPECT_THAT(Choices(candidates, 500), testing::ElementsAre(0, 1));
}

}  // namespace
}  // namespace baton
