#include "planner/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "planner/disaggregation.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

OffloadResult Simulate(const OffloadConfig& config) {
  return *SimulateOffload(config);
}

TEST(OffloadWorkload, IsTheOneOfTheReference) {
  const auto workload = MakeOffloadWorkload(200, 6, 7);
  std::map<int, int> lengths;
  int prompt_tokens = 0;
  int output_tokens = 0;
  for (const OffloadRequest& request : workload) {
    ++lengths[request.prompt_tokens];
    prompt_tokens += request.prompt_tokens;
    output_tokens += request.output_tokens;
  }

  EXPECT_EQ(prompt_tokens, 914'000);
  EXPECT_EQ(output_tokens, 54'905);
  EXPECT_THAT(lengths, ElementsAre(std::pair(2000, 67), std::pair(4000, 71), std::pair(8000, 62)));
  const int first[3][3] = {{4000, 392, 1}, {4000, 316, 0}, {2000, 360, 4}};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(workload[i].prompt_tokens, first[i][0]);
    EXPECT_EQ(workload[i].output_tokens, first[i][1]);
    EXPECT_EQ(workload[i].prefix, first[i][2]);
  }
}

TEST(Offload, GivesTheDeterministicRows) {
  const OffloadResult native = Simulate({});
  EXPECT_NEAR(native.total_ms, 374883.33, 0.005);
  EXPECT_NEAR(native.prefill_ms, 8850, 1e-9);
  EXPECT_EQ(native.avoided(), 124);
  EXPECT_NEAR(native.decode_ms, 366033.33, 0.005);
  EXPECT_NEAR(native.decode_ms / native.total_ms, 0.976, 5e-4);
  EXPECT_NEAR(native.total_ms / native.decode_ms, 1.024, 5e-4);

  const OffloadResult least_recent = Simulate({.eviction = Eviction::kLeastRecent});
  EXPECT_NEAR(least_recent.total_ms, 374683.33, 0.005);
  EXPECT_NEAR(least_recent.prefill_ms, 8650, 1e-9);
  EXPECT_EQ(least_recent.avoided(), 123);

  const OffloadResult unlimited = Simulate({.slots = std::nullopt});
  EXPECT_NEAR(unlimited.total_ms, 368483.33, 0.005);
  EXPECT_NEAR(unlimited.prefill_ms, 2450, 1e-9);
  EXPECT_EQ(unlimited.avoided(), 176);

  const OffloadResult cpu = Simulate(CourseOffloadConfig(OffloadPolicy::kCpuOffload));
  EXPECT_NEAR(cpu.total_ms, 369402.083, 5e-4);
  EXPECT_NEAR(cpu.prefill_ms, 3368.75, 1e-9);
  EXPECT_EQ(cpu.avoided(), 176);
  EXPECT_EQ(cpu.misses, 24);
  EXPECT_EQ(cpu.blocks_stored, 6125);
  EXPECT_NEAR(cpu.store_ms, 918.75, 1e-9);

  const OffloadResult store = Simulate(CourseOffloadConfig(OffloadPolicy::kSharedStore));
  EXPECT_NEAR(store.total_ms, 380833.333, 5e-4);
  EXPECT_NEAR(store.prefill_ms, 14800, 1e-9);
  EXPECT_EQ(store.avoided(), 194);
  EXPECT_EQ(store.local_hits, 176);
  EXPECT_EQ(store.shared_hits, 18);
  EXPECT_EQ(store.blocks_loaded, 4750);
  EXPECT_NEAR(store.load_ms, 14250, 1e-9);
  EXPECT_NEAR(store.prefill_ms - store.load_ms, 550, 1e-9);
}

// set.pop() again: a random victim over 400 seeds.
TEST(Offload, GivesTheRangesOfTheOriginal) {
  double low = 1e9;
  double high = 0;
  double sum = 0;
  int least_avoided = 1000;
  int most_avoided = 0;
  double least_prefill = 1e9;
  double most_prefill = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const OffloadResult result = Simulate({.eviction = Eviction::kRandom, .eviction_seed = seed});
    low = std::min(low, result.total_ms);
    high = std::max(high, result.total_ms);
    sum += result.total_ms;
    least_avoided = std::min(least_avoided, result.avoided());
    most_avoided = std::max(most_avoided, result.avoided());
    least_prefill = std::min(least_prefill, result.prefill_ms);
    most_prefill = std::max(most_prefill, result.prefill_ms);
  }
  EXPECT_NEAR(low, 373033, 300);
  EXPECT_NEAR(high, 376533, 300);
  EXPECT_NEAR(sum / 400, 374902, 200);
  EXPECT_NEAR(least_prefill, 7000, 300);
  EXPECT_NEAR(most_prefill, 10500, 300);
  EXPECT_NEAR(least_avoided, 111, 4);
  EXPECT_NEAR(most_avoided, 133, 4);
  // The published run of hash seed 0.
  EXPECT_TRUE(low < 375683.33 && 375683.33 < high);
  EXPECT_TRUE(least_prefill < 9650 && 9650 < most_prefill);
  EXPECT_TRUE(least_avoided < 114 && 114 < most_avoided);
  // Speed-ups over the original's range.
  const double cpu = Simulate(CourseOffloadConfig(OffloadPolicy::kCpuOffload)).total_ms;
  const double store = Simulate(CourseOffloadConfig(OffloadPolicy::kSharedStore)).total_ms;
  EXPECT_NEAR(373033 / cpu, 1.010, 5e-4);
  EXPECT_NEAR(376533 / cpu, 1.019, 5e-4);
  EXPECT_NEAR(373033 / store, 0.980, 5e-4);
  EXPECT_NEAR(376533 / store, 0.989, 5e-4);
}

TEST(Offload, GivesTheTableOfEqualCapacity) {
  const int slots[] = {6, 5, 4, 3, 2, 1};
  const int shared_hits[] = {18, 45, 70, 104, 135, 164};
  struct Row {
    double ms_per_block;
    double speedups[6];
  };
  const Row rows[] = {
      {3.0, {0.9676, 0.9152, 0.8742, 0.8355, 0.7883, 0.7579}},
      {1.5, {0.9860, 0.9623, 0.9426, 0.9231, 0.8980, 0.8809}},
      {0.4, {1.0, 1.0, 1.0, 1.0, 1.0, 1.0}},
      {0.2, {1.0026, 1.0072, 1.0112, 1.0154, 1.0211, 1.0252}},
      {0.08, {1.0041, 1.0115, 1.0180, 1.0248, 1.0342, 1.0409}},
      {0.02, {1.0049, 1.0137, 1.0215, 1.0296, 1.0409, 1.0490}},
      {0, {1.0052, 1.0145, 1.0226, 1.0312, 1.0431, 1.0517}},
  };
  for (const Row& row : rows) {
    for (int i = 0; i < 6; ++i) {
      const OffloadResult native = Simulate({.slots = slots[i]});
      const OffloadResult store = Simulate({.policy = OffloadPolicy::kSharedStore,
                                            .slots = slots[i],
                                            .load_ms_per_block = row.ms_per_block});
      EXPECT_EQ(store.shared_hits, shared_hits[i]);
      EXPECT_NEAR(native.total_ms / store.total_ms, row.speedups[i], 5.01e-5)
          << row.ms_per_block << " ms, " << slots[i] << " slots";
    }
  }
}

TEST(Offload, BreaksEvenAtABandwidth) {
  EXPECT_DOUBLE_EQ(OffloadBreakEvenMsPerBlock(), 0.4);
  EXPECT_NEAR(OffloadBytesPerSecond(OffloadBreakEvenMsPerBlock()), 5e9, 1);
  EXPECT_NEAR(OffloadBytesPerSecond(3.0) / 1e9, 0.67, 0.005);
  EXPECT_NEAR(OffloadBytesPerSecond(1.5) / 1e9, 1.33, 0.005);
  EXPECT_NEAR(OffloadBytesPerSecond(0.2), 10e9, 1);
  EXPECT_NEAR(OffloadBytesPerSecond(0.08), 25e9, 1);
  EXPECT_NEAR(OffloadBytesPerSecond(0.02), 100e9, 1);
}

// A shared prefix of 6,000 tokens: computing it takes 150 ms, loading it as shipped 1,125.
TEST(Offload, LosesOnTheExerciseAsShipped) {
  EXPECT_NEAR(PrefillMs(6000), 150, 1e-9);
  EXPECT_NEAR(6000 / 16 * OffloadConfig().load_ms_per_block, 1125, 1e-9);
  EXPECT_GT(OffloadConfig().load_ms_per_block, OffloadBreakEvenMsPerBlock());
}

TEST(Offload, TakesOtherCostsThanTheCourses) {
  OffloadConfig config{.policy = OffloadPolicy::kSharedStore};
  const double as_shipped = Simulate(config).total_ms;
  config.costs = {{50, 100, 200}, {125 * 3.0, 250 * 3.0, 500 * 3.0}, 1 / 0.15};
  EXPECT_NEAR(Simulate(config).total_ms, as_shipped, 1e-6);

  config.costs->prefill_ms = {5000, 10'000, 20'000};  // loading is now the quicker way
  const double native = Simulate({.costs = config.costs}).total_ms;
  EXPECT_LT(Simulate(config).total_ms, native);
  config.costs->copy_ms[1] = -1;
  EXPECT_THAT(std::string(SimulateOffload(config).status().message()), HasSubstr("costs.copy_ms"));
}

TEST(Offload, GetsSlowerWithTheLoadTimeAndQuickerWithSlots) {
  double last = 0;
  for (const double ms : {0.0, 0.1, 0.4, 2.0, 9.0}) {
    const double total =
        Simulate({.policy = OffloadPolicy::kSharedStore, .load_ms_per_block = ms}).total_ms;
    EXPECT_GT(total, last);
    last = total;
  }
  last = 1e9;
  for (int slots = 1; slots <= 6; ++slots) {
    const OffloadResult result = Simulate({.slots = slots});
    EXPECT_LT(result.total_ms, last);
    EXPECT_GE(result.prefill_ms, 0);
    EXPECT_EQ(result.avoided() + result.misses, 200);
    last = result.total_ms;
  }
}

TEST(Offload, NamesTheFieldThatIsOutOfRange) {
  const auto problem = [](const OffloadConfig& config) {
    return std::string(SimulateOffload(config).status().message());
  };
  EXPECT_THAT(problem({.slots = 0}), HasSubstr("slots"));
  EXPECT_THAT(problem({.engines = 0}), HasSubstr("engines"));
  EXPECT_THAT(problem({.prefixes = -2}), HasSubstr("prefixes"));
  EXPECT_THAT(problem({.requests = 0}), HasSubstr("requests"));
  EXPECT_THAT(problem({.store_ms_per_block = -1}), HasSubstr("store_ms_per_block"));
  EXPECT_THAT(problem({.load_ms_per_block = std::numeric_limits<double>::infinity()}),
              HasSubstr("load_ms_per_block"));
}

}  // namespace
}  // namespace baton
