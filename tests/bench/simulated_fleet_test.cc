#include "bench/simulated_fleet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "bench/simulated_cache.h"

namespace baton {
namespace {

using Chain = std::vector<PrefixHash>;

// A chain of its own for every `seed`; chains of one seed begin alike.
Chain ChainOf(std::uint32_t seed, std::size_t blocks) {
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < blocks * kBlockTokens; ++i) {
    tokens.push_back(TokenId(seed));
  }
  return HashBlocks(RootHash({}), tokens);
}

TEST(SimulatedCache, EvictsTheLeastRecentlyUsedAndTheEndOfAChainFirst) {
  SimulatedCache cache(8);
  EXPECT_EQ(cache.Use(ChainOf(1, 5)).stored.size(), 5u);
  EXPECT_EQ(cache.Use(ChainOf(2, 3)).stored.size(), 3u);
  const SimulatedCache::Changes changes = cache.Use(ChainOf(3, 2));
  EXPECT_EQ(changes.stored.size(), 2u);
  EXPECT_EQ(changes.removed, (Chain{ChainOf(1, 5)[4], ChainOf(1, 5)[3]}));
  EXPECT_EQ(cache.Matched(ChainOf(1, 5)), 3u);
  EXPECT_EQ(cache.size(), 8u);

  cache.Use(ChainOf(1, 2));  // now 2 is the oldest, but for the third block of 1
  EXPECT_EQ(cache.Use(ChainOf(4, 2)).removed, (Chain{ChainOf(1, 3)[2], ChainOf(2, 3)[2]}));
  EXPECT_EQ(cache.Matched(ChainOf(1, 5)), 2u);
  EXPECT_EQ(cache.Matched(ChainOf(2, 3)), 2u);
}

TEST(SimulatedCache, AChainThatIsTooLongKeepsItsBeginning) {
  SimulatedCache cache(3);
  cache.Use(ChainOf(1, 5));
  EXPECT_EQ(cache.Matched(ChainOf(1, 5)), 3u);
  SimulatedCache unbounded(std::nullopt);
  unbounded.Use(ChainOf(1, 500));
  EXPECT_EQ(unbounded.Matched(ChainOf(1, 500)), 500u);
}

// A prompt takes 1 ms a token, a step 10 ms, of which running sequences cost 5 ms beside a prompt.
CostModel Costs() {
  MeasuredRates rates{.source = "test", .kv_bytes_per_token = 1000, .fixed_share_in_prefill = 0.5};
  rates.prefill = {{.prompt_tokens = 1000, .tokens_per_second = 1000}};
  for (const double batch : {1.0, 8.0}) {
    for (const double depth : {100.0, 1000.0}) {
      rates.decode.push_back({batch, depth, 0.010});
    }
  }
  return *CostModel::Fit(rates);
}

TEST(Replay, TimesAreThoseOfTheCostModel) {
  // The second one waits for the first and has its blocks then; the third comes when all is over,
  // and is wholly cached: its last token is computed again.
  const std::vector<ReplayRequest> requests = {
      {.arrival_seconds = 0, .hashes = ChainOf(1, 2), .output_tokens = 1},
      {.arrival_seconds = 0.012, .hashes = ChainOf(1, 3), .output_tokens = 1},
      {.arrival_seconds = 1, .hashes = ChainOf(1, 3), .output_tokens = 1}};
  const ReplayResult result = Replay(requests, Costs(), {.workers = 1});
  EXPECT_EQ(result.requests, 3u);
  EXPECT_EQ(result.blocks, 8u);
  EXPECT_EQ(result.hit_blocks, 0u + 2 + 3);
  EXPECT_NEAR(result.first_token_seconds, (0.032 + (0.020 + 0.016) + 0.001) / 3, 1e-9);
  EXPECT_NEAR(result.p99_first_token_seconds, 0.036, 1e-9);
  EXPECT_EQ(result.cached_blocks, 3u);
  EXPECT_EQ(result.index_entries, 3u);
  EXPECT_EQ(result.largest_share, 1);
}

// Sequences that run share steps with the prompt; in the meantime the router counts them.
TEST(Replay, RunningSequencesSlowAPromptDown) {
  const std::vector<ReplayRequest> requests = {
      {.arrival_seconds = 0, .hashes = ChainOf(1, 1), .output_tokens = 101},
      {.arrival_seconds = 0.5, .hashes = ChainOf(2, 1), .output_tokens = 1}};
  const CostModel costs = Costs();
  constexpr double kShared = 0.005;
  EXPECT_NEAR(Replay(requests, costs, {.workers = 1}).first_token_seconds, 0.016 + kShared / 2,
              1e-9);
  EXPECT_NEAR(Replay(requests, costs, {.workers = 1}).predicted_first_token_seconds,
              0.016 + kShared / 2, 1e-9);
  EXPECT_NEAR(Replay(requests, costs, {.workers = 2}).first_token_seconds, 0.016, 1e-9)
      << "the other worker is idle";
}

std::vector<ReplayRequest> Conversations(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> turns(60, 0);
  std::vector<ReplayRequest> requests;
  for (int i = 0; i < 1500; ++i) {
    const auto talk = static_cast<std::uint32_t>(random() % turns.size());
    turns[talk] = turns[talk] % 12 + 1;
    requests.push_back({.arrival_seconds = 0.2 * i,
                        .hashes = ChainOf(talk, 4 * turns[talk]),
                        .output_tokens = static_cast<int>(random() % 40) + 1});
  }
  return requests;
}

TEST(Replay, IsDeterministicAndTheIndexIsExact) {
  const std::vector<ReplayRequest> requests = Conversations(5);
  for (const RoutePolicyKind policy : {RoutePolicyKind::kRoundRobin, RoutePolicyKind::kLeastLoaded,
                                       RoutePolicyKind::kPrefix, RoutePolicyKind::kSession}) {
    for (const std::optional<double> speed : {std::optional<double>(), std::optional(1.0)}) {
      const ReplaySetup setup{.policy = policy, .blocks_per_worker = 300, .speed = speed};
      const ReplayResult once = Replay(requests, Costs(), setup);
      const ReplayResult twice = Replay(requests, Costs(), setup);
      EXPECT_EQ(once.hit_blocks, twice.hit_blocks);
      EXPECT_EQ(once.first_token_seconds, twice.first_token_seconds);
      EXPECT_EQ(once.index_entries, once.cached_blocks);
      EXPECT_LE(once.cached_blocks, 8u * 300);
    }
  }
}

// When one request comes after the other, what the policy says is what happens.
TEST(Replay, PredictionsComeTrueWhenNobodyWaits) {
  const ReplayResult result =
      Replay(Conversations(6), Costs(),
             {.policy = RoutePolicyKind::kPrefix, .blocks_per_worker = 300, .speed = std::nullopt});
  EXPECT_NEAR(result.first_token_seconds, result.predicted_first_token_seconds, 1e-9);
}

TEST(Replay, PrefixFindsMoreThanRoundRobin) {
  const std::vector<ReplayRequest> requests = Conversations(7);
  ReplaySetup setup{.policy = RoutePolicyKind::kRoundRobin, .blocks_per_worker = 300};
  const ReplayResult round_robin = Replay(requests, Costs(), setup);
  setup.policy = RoutePolicyKind::kPrefix;
  const ReplayResult prefix = Replay(requests, Costs(), setup);
  EXPECT_GT(prefix.hit_rate(), 1.5 * round_robin.hit_rate());
  EXPECT_LT(prefix.first_token_seconds, round_robin.first_token_seconds);
}

// T66: what host memory has is neither forgotten nor over-counted.
TEST(Replay, HostMemoryIsWorthWhatItIsQuickerThanComputing) {
  const std::vector<ReplayRequest> requests = Conversations(8);
  ReplaySetup setup{.policy = RoutePolicyKind::kPrefix, .blocks_per_worker = 100, .speed = {}};
  const ReplayResult device = Replay(requests, Costs(), setup);
  EXPECT_EQ(device.loaded_blocks, 0u);

  setup.host_blocks_per_worker = 300;
  setup.host_rate = {.name = "host", .fixed_seconds = 0.001, .bytes_per_second = 16e6};
  const ReplayResult quick = Replay(requests, Costs(), setup);  // 1 ms a block; computing: 16 ms
  EXPECT_GT(quick.loaded_blocks, 0u);
  EXPECT_GT(quick.hit_rate(), 1.2 * device.hit_rate());
  EXPECT_LT(quick.first_token_seconds, 0.9 * device.first_token_seconds);
  EXPECT_NEAR(quick.first_token_seconds, quick.predicted_first_token_seconds, 1e-6);
  EXPECT_EQ(quick.index_entries, quick.cached_blocks);

  setup.host_rate.bytes_per_second = 0.9e6;  // 17.8 ms a block
  const ReplayResult slow = Replay(requests, Costs(), setup);
  EXPECT_EQ(slow.loaded_blocks, 0u);
  EXPECT_EQ(slow.hit_blocks, device.hit_blocks);
  EXPECT_EQ(slow.first_token_seconds, device.first_token_seconds);
}

}  // namespace
}  // namespace baton
