#include "planner/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "planner/break_even.h"
#include "planner/disaggregation.h"
#include "planner/least_squares.h"
#include "planner/offload.h"
#include "planner/regions.h"
#include "tests/planner/course_rates.h"

namespace baton {
namespace {

using testing::HasSubstr;

TEST(FitNonNegative, FindsTheCoefficientsOfExactData) {
  std::vector<Observation> seen;
  for (const double x : {1.0, 10.0, 100.0, 3000.0}) {
    seen.push_back({{1, x, x * x}, 0.5 + 0.25 * x + 1e-4 * x * x});
  }

  const auto found = FitNonNegative(seen);

  EXPECT_NEAR(found[0], 0.5, 1e-8);
  EXPECT_NEAR(found[1], 0.25, 1e-8);
  EXPECT_NEAR(found[2], 1e-4, 1e-11);
}

TEST(FitNonNegative, NeverGoesBelowZero) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> noise(0.2, 3);
  for (int run = 0; run < 200; ++run) {
    std::vector<Observation> seen;
    for (int i = 0; i < 1 + run % 6; ++i) {
      const double x = std::pow(10, noise(random));
      seen.push_back({{1, x, x * x}, noise(random) / x});  // falls as x grows
    }
    for (const double coefficient : FitNonNegative(seen)) {
      EXPECT_GE(coefficient, 0) << run;
      EXPECT_TRUE(std::isfinite(coefficient)) << run;
    }
  }
}

TEST(FitNonNegative, TakesFewerTermsFromFewObservations) {
  EXPECT_EQ(FitNonNegative({}), (std::array<double, 3>{}));
  const Observation one{{1, 4, 16}, 2};
  EXPECT_EQ(FitNonNegative({&one, 1}), (std::array<double, 3>{2, 0, 0}));
}

// With the course's constants the measured mode is the course's model.
TEST(CostModel, IsTheCourseModelOnItsConstants) {
  const CostModel model = FitModel(CourseRates());
  const TransportRate& rdma = *model.rates().FindTransport("rdma");
  const TransportRate& tcp = *model.rates().FindTransport("tcp");
  for (const double tokens : {256.0, 512.0, 4096.0, 32'768.0}) {
    EXPECT_NEAR(model.PrefillSeconds(tokens) * 1000, PrefillMs(tokens), 1e-6);
    EXPECT_NEAR(model.TransferSeconds(rdma, tokens) * 1000,
                KvTransferMs(tokens, kCourseRdmaBytesPerSecond), 1e-9);
    EXPECT_NEAR(model.TransferSeconds(tcp, tokens) * 1000,
                KvTransferMs(tokens, kCourseTcpBytesPerSecond), 1e-9);
    EXPECT_NEAR(
        model.ExposedTransferSeconds(tcp, tokens, model.PrefillSeconds(tokens), 1) * 1000,
        ExposedLayerwiseMs(PrefillMs(tokens), KvTransferMs(tokens, kCourseTcpBytesPerSecond), 80),
        1e-6);
  }
  EXPECT_NEAR(model.DecodeStepSeconds(1, 0), 0.01, 1e-9);
  EXPECT_NEAR(model.DecodeStepSeconds(16, 9000), 0.01, 1e-9);
  EXPECT_NEAR(HidingBytesPerSecond(model, 4096), 5e9, 10);
}

TEST(CostModel, BreaksEvenWhereTheClosedFormsOfTheCourseSay) {
  const CostModel model = FitModel(CourseRates());
  for (const double tokens : {512.0, 4096.0}) {
    EXPECT_NEAR(*LoadBreakEvenBytesPerSecond(model, tokens, 0),
                OffloadBytesPerSecond(OffloadBreakEvenMsPerBlock()), 100);
  }
  // Equal workers: a split never pays beside an idle one.
  const TransportRate& rdma = *model.rates().FindTransport("rdma");
  EXPECT_EQ(SplitBreakEvenTokens({.model = model, .transport = rdma}), std::nullopt);
  // A region's round trip against prefill of 40 tokens/ms.
  EXPECT_EQ(RegionBreakEvenTokens(model, 0.0750001, 0), 3001);
  // Steps that do not grow with the batch: the formula itself.
  for (const int workers : {1, 2, 4, 9}) {
    const HogwildTask task;
    EXPECT_NEAR(MeasuredGroupSpeedup(model, task, 0, workers), ExpectedSpeedup(task, workers),
                1e-6);
  }
  EXPECT_EQ(BestMeasuredWorkers(model, {}, 0), 6);
}

TEST(CostModel, FindsTheCurvesOfExactRates) {
  const CostModel model = FitModel(SmallRates());

  EXPECT_NEAR(model.prefill_coefficients()[0], 0.004, 1e-8);
  EXPECT_NEAR(model.prefill_coefficients()[1], 0.0008, 1e-10);
  EXPECT_NEAR(model.prefill_coefficients()[2], 4e-8, 1e-12);
  EXPECT_NEAR(model.decode_coefficients()[0], 0.01, 1e-9);
  EXPECT_NEAR(model.decode_coefficients()[1], 0.002, 1e-10);
  EXPECT_NEAR(model.decode_coefficients()[2], 1e-6, 1e-13);
  EXPECT_LT(*MedianError(FitErrors(model)), 1e-6);
}

TEST(CostModel, TakesOnePointOfEach) {
  MeasuredRates rates = SmallRates();
  rates.prefill = {{1024, 2000}};
  rates.decode = {{1, 0, 0.02}};
  const CostModel model = FitModel(rates);

  EXPECT_NEAR(model.PrefillSeconds(512), 0.256, 1e-9);
  EXPECT_NEAR(model.DecodeStepSeconds(8, 1000), 0.02, 1e-9);
}

TEST(CostModel, CountsACachedPrefixAsDone) {
  const CostModel model = FitModel(SmallRates());

  EXPECT_EQ(model.PrefillSeconds(PromptTokens{1000, 1000}), 0);
  EXPECT_EQ(model.PrefillSeconds(PromptTokens{1000, 5000}), 0);
  // Later tokens see more: the second half of a prompt takes longer than the first.
  EXPECT_GT(model.PrefillSeconds(PromptTokens{2000, 1000}), model.PrefillSeconds(1000));
  const double fixed = model.prefill_coefficients()[0];
  EXPECT_NEAR(model.PrefillSeconds(PromptTokens{2000, 1000}) + model.PrefillSeconds(1000) - fixed,
              model.PrefillSeconds(2000), 1e-9);
}

// No part of any prediction is negative, and nothing gets quicker when there is more of it.
TEST(CostModel, IsMonotonicAndNeverNegative) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> spread(0.5, 2);
  for (int run = 0; run < 50; ++run) {
    MeasuredRates rates = SmallRates();
    for (PrefillRate& rate : rates.prefill) {
      rate.tokens_per_second *= spread(random);  // as noisy as a busy machine
    }
    for (DecodeStep& step : rates.decode) {
      step.step_seconds *= spread(random);
    }
    const CostModel model = FitModel(rates);
    const TransportRate& slow = *model.rates().FindTransport("slow");
    double last_total = 0;
    double last_transfer = 0;
    for (double tokens = 1; tokens < 20'000; tokens *= 1.7) {
      const PromptTokens prompt{tokens, tokens / 3};
      const WorkerLoad load{
          .queued_prefill_tokens = 700, .running_sequences = 5, .depth_tokens = 900};
      const FirstTokenTime whole = model.PredictColocated(prompt, load);
      const FirstTokenTime split = PredictDisaggregated({model, {}, slow}, prompt, prompt);
      for (const FirstTokenTime& time : {whole, split}) {
        EXPECT_GE(time.queue_seconds, 0);
        EXPECT_GE(time.prefill_seconds, 0);
        EXPECT_GE(time.shared_seconds, 0);
        EXPECT_GE(time.exposed_seconds, 0);
        EXPECT_GE(time.stall_seconds, 0);
        EXPECT_GE(time.decoding_seconds(), time.first_token_seconds());
      }
      EXPECT_GE(whole.decoding_seconds(), last_total) << "run " << run;
      EXPECT_GE(model.TransferSeconds(slow, tokens), last_transfer);
      last_total = whole.decoding_seconds();
      last_transfer = model.TransferSeconds(slow, tokens);
    }
    EXPECT_GE(model.DecodeStepSeconds(2, 100), model.DecodeStepSeconds(1, 100));
    EXPECT_GE(model.DecodeStepSeconds(2, 200), model.DecodeStepSeconds(2, 100));
  }
}

TEST(CostModel, MakesARequestWaitForWhatIsAheadOfIt) {
  const CostModel model = FitModel(SmallRates());
  const PromptTokens prompt{512};
  const double idle = model.PredictColocated(prompt, {}).first_token_seconds();
  EXPECT_NEAR(idle, model.PrefillSeconds(512), 1e-12);

  const FirstTokenTime queued = model.PredictColocated(prompt, {.queued_prefill_tokens = 1000});
  EXPECT_NEAR(queued.first_token_seconds(), idle + model.PrefillSeconds(1000), 1e-12);

  // 512 rows beside 6 streams in steps of 256 rows: 250 a step, three steps.
  const FirstTokenTime busy =
      model.PredictColocated(prompt, {.running_sequences = 6, .depth_tokens = 500});
  const double weights = model.decode_coefficients()[0];
  EXPECT_NEAR(busy.shared_seconds, 3 * (model.DecodeStepSeconds(6, 500) - weights), 1e-12);
  EXPECT_NEAR(busy.stall_seconds, 6 * model.PrefillSeconds(512), 1e-12);
}

TEST(CostModel, SendsOnlyWhatTheDecodeSideLacksInWholeBlocks) {
  const CostModel model = FitModel(SmallRates());
  const TransportRate& slow = *model.rates().FindTransport("slow");
  EXPECT_NEAR(model.TransferSeconds(slow, 17), 0.050 + 32 * 23'040 / 5e6, 1e-12);
  EXPECT_NEAR(model.TransferSeconds(slow, 32), 0.050 + 32 * 23'040 / 5e6, 1e-12);

  const FirstTokenTime all = PredictDisaggregated({model, {}, slow}, {1024}, {1024});
  const FirstTokenTime half = PredictDisaggregated({model, {}, slow}, {1024}, {1024, 512});
  EXPECT_LT(half.exposed_seconds, all.exposed_seconds);
  EXPECT_EQ(half.prefill_seconds, all.prefill_seconds);
}

TEST(SplitBreakEven, AppearsOnlyBesideRunningStreams) {
  const CostModel model = FitModel(SmallRates());
  const TransportRate& tcp = *model.rates().FindTransport("tcp");
  SplitQuestion question{.model = model, .transport = tcp};
  EXPECT_EQ(SplitBreakEvenTokens(question), std::nullopt);

  int last = 1 << 20;
  for (const double running : {1.0, 4.0, 16.0}) {
    question.decode_load = {.running_sequences = running, .depth_tokens = 1000};
    question.count_stalls = false;
    const std::optional<int> alone = SplitBreakEvenTokens(question);
    ASSERT_TRUE(alone.has_value());
    EXPECT_LE(*alone, last) << "more streams never make it later";
    EXPECT_GT(SplitGainSeconds(question, *alone), 0);
    if (*alone > 1) {
      EXPECT_LE(SplitGainSeconds(question, *alone - 1), 0);
    }
    question.count_stalls = true;
    EXPECT_LE(*SplitBreakEvenTokens(question), *alone);
    last = *alone;
  }
  // A slow link never pays.
  const TransportRate& slow = *model.rates().FindTransport("slow");
  const SplitQuestion over_slow{
      .model = model, .transport = slow, .decode_load = {.running_sequences = 1}};
  EXPECT_EQ(SplitBreakEvenTokens(over_slow), std::nullopt);
}

TEST(LoadBreakEven, IsTheRateAtWhichBothTakeTheSameTime) {
  const CostModel model = FitModel(SmallRates());
  for (const double tokens : {64.0, 500.0, 4000.0}) {
    const double rate = *LoadBreakEvenBytesPerSecond(model, tokens, 0.01);
    EXPECT_NEAR(model.TransferSeconds({"", 0.01, rate}, tokens), model.PrefillSeconds(tokens),
                1e-9);
  }
  EXPECT_EQ(LoadBreakEvenBytesPerSecond(model, 16, 10), std::nullopt) << "fixed cost alone";
  const TransportRate& tcp = *model.rates().FindTransport("tcp");
  const int length = *LoadBreakEvenTokens(model, tcp);
  EXPECT_LT(model.TransferSeconds(tcp, length), model.PrefillSeconds(length));
  EXPECT_EQ(LoadBreakEvenTokens(model, *model.rates().FindTransport("slow")), std::nullopt);
}

TEST(RegionBreakEven, GrowsWithTheRoundTrip) {
  const CostModel model = FitModel(SmallRates());
  int last = 0;
  for (const double seconds : {0.0, 0.065, 0.13, 0.44}) {
    const int length = *RegionBreakEvenTokens(model, seconds, 64);
    EXPECT_GE(length, last);
    last = length;
  }
  EXPECT_EQ(RegionBreakEvenTokens(model, 1e4, 64), std::nullopt);
}

TEST(MeasuredGroup, GainsLessWhenStepsGrowWithTheGroup) {
  const CostModel model = FitModel(SmallRates());
  const HogwildTask task;
  EXPECT_NEAR(MeasuredGroupSpeedup(model, task, 1000, 1), ExpectedSpeedup(task, 1), 1e-9);
  for (const int workers : {2, 4, 8, 16}) {
    EXPECT_LT(MeasuredGroupSpeedup(model, task, 1000, workers), ExpectedSpeedup(task, workers));
  }
  EXPECT_LE(BestMeasuredWorkers(model, task, 1000), BestWorkers(task));
}

TEST(RequestErrors, ComparesTheModelWithTimedRequests) {
  MeasuredRates rates = SmallRates();
  const CostModel exact = FitModel(rates);
  const double seconds = exact.PrefillSeconds(700);
  rates.measured = {{.prompt_tokens = 700, .first_token_seconds = seconds},
                    {.disaggregated = true,
                     .transport = "tcp",
                     .prompt_tokens = 700,
                     .running_sequences = 3,
                     .first_token_seconds = (seconds + 0.004) * 2}};
  const auto errors = RequestErrors(FitModel(rates));

  ASSERT_EQ(errors.size(), 2u);
  EXPECT_NEAR(errors[0].relative(), 0, 1e-6);
  EXPECT_NEAR(errors[1].relative(), -0.5, 1e-6);
  EXPECT_NEAR(*MedianError(errors), 0.25, 1e-6);
  EXPECT_EQ(MedianError({}), std::nullopt);
}

TEST(MeasuredRates, NamesTheFieldThatIsWrong) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  const auto problem = [](const std::function<void(MeasuredRates&)>& spoil) {
    MeasuredRates rates = SmallRates();
    spoil(rates);
    return std::string(CostModel::Fit(rates).status().message());
  };
  EXPECT_THAT(problem([](auto& r) { r.prefill.clear(); }), HasSubstr("prefill: empty"));
  EXPECT_THAT(problem([](auto& r) { r.decode.clear(); }), HasSubstr("decode: empty"));
  EXPECT_THAT(problem([&](auto& r) { r.prefill[1].tokens_per_second = nan; }),
              HasSubstr("prefill[1].tokens_per_second"));
  EXPECT_THAT(problem([](auto& r) { r.prefill[0].tokens_per_second = 0; }),
              HasSubstr("prefill[0].tokens_per_second"));
  EXPECT_THAT(problem([](auto& r) { r.prefill[2].prompt_tokens = -4; }),
              HasSubstr("prefill[2].prompt_tokens"));
  EXPECT_THAT(problem([](auto& r) { std::swap(r.prefill[0], r.prefill[1]); }),
              HasSubstr("does not rise"));
  EXPECT_THAT(problem([](auto& r) { r.prefill[1].prompt_tokens = r.prefill[0].prompt_tokens; }),
              HasSubstr("prefill[1].prompt_tokens"));
  EXPECT_THAT(problem([](auto& r) { r.decode[1].batch = 0; }), HasSubstr("decode[1].batch"));
  EXPECT_THAT(problem([](auto& r) { r.decode[1] = r.decode[0]; }), HasSubstr("decode[1]"));
  EXPECT_THAT(problem([&](auto& r) { r.decode[2].step_seconds = infinite; }),
              HasSubstr("decode[2].step_seconds"));
  EXPECT_THAT(problem([](auto& r) { r.decode[2].depth_tokens = 1e15; }),
              HasSubstr("decode[2].depth_tokens"));
  EXPECT_THAT(problem([](auto& r) { r.transports[0].bytes_per_second = -1; }),
              HasSubstr("transports[0].bytes_per_second"));
  EXPECT_THAT(problem([&](auto& r) { r.transports[1].fixed_seconds = nan; }),
              HasSubstr("transports[1].fixed_seconds"));
  EXPECT_THAT(problem([](auto& r) { r.transports[1].name = "tcp"; }),
              HasSubstr("transports[1].name"));
  EXPECT_THAT(problem([](auto& r) { r.kv_bytes_per_token = 0; }), HasSubstr("kv_bytes_per_token"));
  EXPECT_THAT(problem([&](auto& r) { r.block_tokens = nan; }), HasSubstr("block_tokens"));
  EXPECT_THAT(problem([](auto& r) { r.layers = 1e9; }), HasSubstr("layers"));
  EXPECT_THAT(problem([](auto& r) { r.max_batch_tokens = 0; }), HasSubstr("max_batch_tokens"));
  EXPECT_THAT(problem([](auto& r) { r.kv_pool_tokens = -1; }), HasSubstr("kv_pool_tokens"));
  EXPECT_THAT(problem([](auto& r) { r.fixed_share_in_prefill = -1; }),
              HasSubstr("fixed_share_in_prefill"));
  EXPECT_THAT(problem([](auto& r) {
                r.measured = {{.disaggregated = true,
                               .transport = "pigeon",
                               .prompt_tokens = 1,
                               .first_token_seconds = 1}};
              }),
              HasSubstr("measured[0].transport"));
  EXPECT_THAT(problem([](auto& r) { r.measured = {{.prompt_tokens = 5}}; }),
              HasSubstr("measured[0].first_token_seconds"));
}

}  // namespace
}  // namespace baton
