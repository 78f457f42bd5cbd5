#include "bench/load_metrics.h"

#include <gtest/gtest.h>

#include <vector>

#include "bench/load_arrivals.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

RequestRecord Record(int scheduled_ms, int sent_ms, const std::vector<int>& token_ms) {
  RequestRecord record{.scheduled = milliseconds(scheduled_ms), .sent = milliseconds(sent_ms)};
  record.prompt_tokens = 10;
  for (const int time : token_ms) {
    record.token_times.emplace_back(milliseconds(time));
    record.ended = milliseconds(time);
  }
  return record;
}

TEST(Percentiles, AreInterpolatedAsNumpyDoes) {
  const Distribution values = Describe({4, 1, 3, 2});

  EXPECT_EQ(values.count, 4);
  EXPECT_DOUBLE_EQ(values.mean, 2.5);
  EXPECT_DOUBLE_EQ(values.p50, 2.5);
  EXPECT_DOUBLE_EQ(values.p90, 3.7);
  EXPECT_DOUBLE_EQ(values.p99, 3.97);
  EXPECT_DOUBLE_EQ(values.max, 4);
  EXPECT_NEAR(values.deviation, 1.118034, 1e-6);
  EXPECT_EQ(Describe({}).count, 0);
}

TEST(LoadSummary, CountsFromTheTimeARequestWasDue) {
  LoadRun run;
  run.records.push_back(Record(100, 400, {500, 520, 560}));  // sent 300 ms late

  const LoadSummary summary = Summarize(run, {});

  EXPECT_DOUBLE_EQ(summary.first_token_ms.p50, 400);
  EXPECT_DOUBLE_EQ(summary.end_ms.p50, 460);
  EXPECT_DOUBLE_EQ(summary.per_token_ms.p50, 30);
  EXPECT_DOUBLE_EQ(summary.inter_token_ms.max, 40);
  EXPECT_DOUBLE_EQ(summary.send_lag_ms.p50, 300);
  EXPECT_DOUBLE_EQ(summary.seconds, 0.56);
}

TEST(LoadSummary, LeavesTheWarmUpOut) {
  LoadRun run;
  run.records.push_back(Record(0, 0, {900}));
  run.records.push_back(Record(1000, 1000, {1100, 3000}));

  const LoadSummary summary = Summarize(run, {.warm_up = milliseconds(1000)});

  EXPECT_EQ(summary.requests, 1);
  EXPECT_DOUBLE_EQ(summary.seconds, 2);
  EXPECT_DOUBLE_EQ(summary.per_second(summary.output_tokens), 1);
}

TEST(LoadSummary, GoodRequestsKeepBothLimits) {
  const ServiceLimits limits{.first_token_ms = 100, .inter_token_ms = 50};
  std::vector<int> one_stall{10};
  while (one_stall.size() < 41) {
    one_stall.push_back(one_stall.back() + (one_stall.size() == 20 ? 400 : 20));
  }

  EXPECT_TRUE(KeepsLimits(Record(0, 0, {100}), limits));
  EXPECT_FALSE(KeepsLimits(Record(0, 0, {101}), limits));
  EXPECT_FALSE(KeepsLimits(Record(0, 0, {}), limits));
  EXPECT_TRUE(KeepsLimits(Record(0, 0, {10, 60}), limits));
  EXPECT_FALSE(KeepsLimits(Record(0, 0, {10, 61}), limits));
  EXPECT_TRUE(KeepsLimits(Record(0, 0, one_stall), limits));  // 1 of 40 gaps
}

TEST(Arrivals, FixedOnesAreEvenlyApart) {
  const auto times = MakeArrivals({.kind = ArrivalKind::kFixed, .requests_per_second = 4}, 3);

  EXPECT_EQ(times,
            (std::vector<Duration>{milliseconds(250), milliseconds(500), milliseconds(750)}));
}

TEST(Arrivals, PoissonOnesHaveTheirRateAndSpread) {
  const auto times = MakeArrivals({.requests_per_second = 50, .seed = 3}, 20'000);
  std::vector<double> gaps;
  for (std::size_t i = 1; i < times.size(); ++i) {
    gaps.push_back(std::chrono::duration<double>(times[i] - times[i - 1]).count());
  }
  const Distribution spread = Describe(gaps);

  EXPECT_NEAR(spread.mean, 0.02, 0.0006);
  EXPECT_NEAR(spread.deviation, 0.02, 0.001);
  EXPECT_EQ(times, MakeArrivals({.requests_per_second = 50, .seed = 3}, 20'000));
  EXPECT_NE(times, MakeArrivals({.requests_per_second = 50, .seed = 4}, 20'000));
}

TEST(Arrivals, WithinADurationTheNumberIsExact) {
  for (const ArrivalKind kind :
       {ArrivalKind::kPoisson, ArrivalKind::kFixed, ArrivalKind::kBursts}) {
    const auto times =
        MakeArrivalsWithin({.kind = kind, .burst_requests = 3}, 7, milliseconds(1000));

    ASSERT_EQ(times.size(), 7);
    EXPECT_GT(times.front(), Duration::zero());
    EXPECT_LT(times.back(), milliseconds(1000));
  }
  EXPECT_EQ(MakeArrivalsWithin({.kind = ArrivalKind::kFixed}, 3, milliseconds(1000)),
            (std::vector<Duration>{milliseconds(250), milliseconds(500), milliseconds(750)}));
}

TEST(Arrivals, BurstsComeTogetherAndKeepTheRate) {
  const auto times = MakeArrivals(
      {.kind = ArrivalKind::kBursts, .requests_per_second = 50, .burst_requests = 8}, 20'000);

  for (std::size_t i = 0; i < times.size(); i += 8) {
    EXPECT_EQ(times[i], times[i + 7]);
  }
  EXPECT_NEAR(std::chrono::duration<double>(times.back()).count(), 400, 25);
}

}  // namespace
}  // namespace baton
