#include "planner/pool_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "planner/queueing.h"
#include "tests/planner/course_rates.h"

namespace baton {
namespace {

using testing::HasSubstr;

TEST(Queueing, GivesTheTextbookValues) {
  // M/M/1 at half load: the wait is a service time; M/D/1: half of one.
  EXPECT_NEAR(MeanWaitSeconds({1, 0.5, 1, 1}), 1, 1e-12);
  EXPECT_NEAR(MeanWaitSeconds({1, 0.5, 1, 0}), 0.5, 1e-12);
  // Pollaczek and Khinchine at another load and variation: rho / (1 - rho) (1 + v) / 2 S.
  EXPECT_NEAR(MeanWaitSeconds({1, 0.4, 2, 0.5}), 0.8 / 0.2 * 1.5 / 2 * 2, 1e-12);
  // Erlang's C: two servers at half load each, 1/3; ten at 0.8, 0.409.
  EXPECT_NEAR(ChanceOfWaiting({2, 1, 1, 1}), 1.0 / 3, 1e-12);
  EXPECT_NEAR(ChanceOfWaiting({10, 8, 1, 1}), 0.409, 5e-4);
  EXPECT_NEAR(ChanceOfWaiting({1, 0.3, 1, 1}), 0.3, 1e-12);
  // The 90th percentile of M/M/1 at half load: ln(0.5 / 0.1) / (1 - 0.5).
  EXPECT_NEAR(WaitQuantileSeconds({1, 0.5, 1, 1}, 0.9), std::log(5) / 0.5, 1e-12);
  EXPECT_EQ(WaitQuantileSeconds({1, 0.05, 1, 1}, 0.9), 0);
  EXPECT_TRUE(std::isinf(MeanWaitSeconds({2, 2, 1, 1})));
  EXPECT_TRUE(std::isinf(WaitQuantileSeconds({2, 3, 1, 1}, 0.5)));
  EXPECT_EQ(MeanWaitSeconds({3, 0, 1, 1}), 0);
}

// First come, first served, by events.
double SimulatedWait(const QueueLoad& load, bool exponential) {
  std::mt19937_64 random(17);
  std::exponential_distribution<double> gap(load.arrivals_per_second);
  std::exponential_distribution<double> service(1 / load.service_seconds);
  std::vector<double> free_at(static_cast<std::size_t>(load.servers), 0);
  double now = 0;
  double waited = 0;
  constexpr int kArrivals = 400'000;
  for (int i = 0; i < kArrivals; ++i) {
    now += gap(random);
    const auto server = std::min_element(free_at.begin(), free_at.end());
    const double begin = std::max(now, *server);
    waited += begin - now;
    *server = begin + (exponential ? service(random) : load.service_seconds);
  }
  return waited / kArrivals;
}

TEST(Queueing, AgreesWithASimulation) {
  for (const int servers : {1, 2, 5}) {
    for (const double utilisation : {0.5, 0.8}) {
      const QueueLoad constant = {servers, servers * utilisation, 1, 0};
      const QueueLoad exponential = {servers, servers * utilisation, 1, 1};
      // Exact for one server and for exponential service; an approximation for M/D/c.
      EXPECT_NEAR(SimulatedWait(constant, false) / MeanWaitSeconds(constant), 1,
                  servers == 1 ? 0.03 : 0.2)
          << servers << " at " << utilisation;
      EXPECT_NEAR(SimulatedWait(exponential, true) / MeanWaitSeconds(exponential), 1, 0.05)
          << servers << " at " << utilisation;
    }
  }
}

TEST(Queueing, GrowsWithLoadAndVariationAndFallsWithServers) {
  double last = 0;
  for (const double rate : {0.1, 0.5, 0.9, 0.99}) {
    EXPECT_GT(MeanWaitSeconds({1, rate, 1, 0.3}), last);
    last = MeanWaitSeconds({1, rate, 1, 0.3});
  }
  EXPECT_GT(MeanWaitSeconds({2, 1.5, 1, 2}), MeanWaitSeconds({2, 1.5, 1, 1}));
  EXPECT_LT(MeanWaitSeconds({4, 1.5, 1, 1}), MeanWaitSeconds({2, 1.5, 1, 1}));
  EXPECT_GE(WaitQuantileSeconds({2, 1.5, 1, 1}, 0.99), WaitQuantileSeconds({2, 1.5, 1, 1}, 0.9));
}

class PoolSizeTest : public testing::Test {
 protected:
  PoolSizes Size(const PoolQuestion& question) {
    return *SizePools(model_, model_.rates().transports[0], question);
  }
  std::string Problem(const PoolQuestion& question) {
    return std::string(
        SizePools(model_, model_.rates().transports[0], question).status().message());
  }

  const CostModel model_ = FitModel(SmallRates());
  const PoolQuestion question_{.requests_per_second = 2,
                               .prompt_tokens = 1000,
                               .output_tokens = 100,
                               .first_token_limit_seconds = 3,
                               .token_limit_seconds = 0.05};
};

TEST_F(PoolSizeTest, KeepsItsOwnLimits) {
  const PoolSizes sizes = Size(question_);

  EXPECT_LE(sizes.split.first_token_seconds, 3);
  EXPECT_LE(sizes.split.step_seconds, 0.05);
  EXPECT_LE(sizes.split.prefill_load / sizes.split.prefill_workers, 0.7);
  EXPECT_LE(sizes.split.decode_load / sizes.split.decode_workers, 0.7);
  EXPECT_LE(sizes.split.running, sizes.split.most_batch);
  ASSERT_TRUE(sizes.whole.has_value() || question_.token_limit_seconds < 0.1);
  // 2 a second of 0.844 s each at 70 % at most: three.
  EXPECT_EQ(sizes.split.prefill_workers, 3);
}

// Streams in a pool: arrivals times the time that each runs, at the steps that so many take.
TEST_F(PoolSizeTest, ObeysLittlesLaw) {
  for (const double rate : {0.01, 0.5, 2.0, 30.0}) {
    PoolQuestion question = question_;
    question.requests_per_second = rate;
    const SplitPools split = Size(question).split;
    const double arrivals = rate / split.decode_workers;
    const double step = model_.DecodeStepSeconds(std::max(1.0, split.running), 1050);
    EXPECT_NEAR(split.running, arrivals * question.output_tokens * step, 1e-6) << rate;
  }
}

TEST_F(PoolSizeTest, GrowsWithTheRateAndShrinksWithLooserLimits) {
  int last_prefill = 0;
  int last_decode = 0;
  for (const double rate : {0.1, 1.0, 5.0, 50.0}) {
    PoolQuestion question = question_;
    question.requests_per_second = rate;
    const PoolSizes sizes = Size(question);
    EXPECT_GE(sizes.split.prefill_workers, last_prefill);
    EXPECT_GE(sizes.split.decode_workers, last_decode);
    last_prefill = sizes.split.prefill_workers;
    last_decode = sizes.split.decode_workers;
  }
  PoolQuestion loose = question_;
  loose.first_token_limit_seconds = 30;
  loose.token_limit_seconds = 0.5;
  EXPECT_LE(Size(loose).split.prefill_workers, Size(question_).split.prefill_workers);
  EXPECT_LE(Size(loose).split.decode_workers, Size(question_).split.decode_workers);
}

TEST_F(PoolSizeTest, ShiftsTheRatioToWhatTheRequestsNeed) {
  PoolQuestion long_prompts = question_;
  long_prompts.prompt_tokens = 4000;
  long_prompts.output_tokens = 20;
  long_prompts.first_token_limit_seconds = 20;
  long_prompts.requests_per_second = 5;
  PoolQuestion long_outputs = question_;
  long_outputs.prompt_tokens = 100;
  long_outputs.output_tokens = 1000;
  long_outputs.requests_per_second = 5;

  const SplitPools prompts = Size(long_prompts).split;
  const SplitPools outputs = Size(long_outputs).split;

  EXPECT_GT(prompts.prefill_workers, prompts.decode_workers);
  EXPECT_LT(outputs.prefill_workers, outputs.decode_workers);
}

// A chunk of somebody else's prompt is longer than the limit between tokens, and comes too often.
TEST_F(PoolSizeTest, FindsWhatOnlyASplitCanKeep) {
  PoolQuestion question = question_;
  question.requests_per_second = 20;
  question.output_tokens = 20;
  EXPECT_FALSE(Size(question).whole.has_value());
  question.token_limit_seconds = 2;
  ASSERT_TRUE(Size(question).whole.has_value());
  EXPECT_LE(Size(question).whole->token_seconds, 2);
  EXPECT_LE(Size(question).whole->first_token_seconds, question.first_token_limit_seconds);
}

TEST_F(PoolSizeTest, NamesTheLimitThatNobodyCanKeep) {
  PoolQuestion question = question_;
  question.first_token_limit_seconds = 0.5;
  EXPECT_THAT(Problem(question), HasSubstr("first_token_limit_seconds"));
  question = question_;
  question.token_limit_seconds = 0.001;
  EXPECT_THAT(Problem(question), HasSubstr("token_limit_seconds"));
  question = question_;
  question.prompt_tokens = 200'000;
  question.token_limit_seconds = 1;
  EXPECT_THAT(Problem(question), HasSubstr("kv_pool_tokens"));
}

TEST_F(PoolSizeTest, NamesTheFieldThatIsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto with = [this](double PoolQuestion::*field, double value) {
    PoolQuestion question = question_;
    question.*field = value;
    return Problem(question);
  };
  EXPECT_THAT(with(&PoolQuestion::requests_per_second, nan), HasSubstr("requests_per_second"));
  EXPECT_THAT(with(&PoolQuestion::requests_per_second, 0), HasSubstr("requests_per_second"));
  EXPECT_THAT(with(&PoolQuestion::prompt_tokens, -1), HasSubstr("prompt_tokens"));
  EXPECT_THAT(with(&PoolQuestion::output_tokens, 1e12), HasSubstr("output_tokens"));
  EXPECT_THAT(with(&PoolQuestion::quantile, 1), HasSubstr("quantile"));
  EXPECT_THAT(with(&PoolQuestion::most_utilisation, 1), HasSubstr("most_utilisation"));
  EXPECT_THAT(with(&PoolQuestion::prompt_squared_variation, -1),
              HasSubstr("prompt_squared_variation"));
  EXPECT_THAT(with(&PoolQuestion::first_token_limit_seconds, 0),
              HasSubstr("first_token_limit_seconds"));
  EXPECT_THAT(with(&PoolQuestion::token_limit_seconds, nan), HasSubstr("token_limit_seconds"));
}

}  // namespace
}  // namespace baton
