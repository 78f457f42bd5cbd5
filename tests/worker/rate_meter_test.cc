#include "worker/rate_meter.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

using std::chrono::milliseconds;

// Makes the steps of an engine, one after the other.
class RateMeterTest : public testing::Test {
 protected:
  // One step; what is not given of the tokens follows from the rows.
  void Step(StepStatistics step, milliseconds duration) {
    step.start = now_;
    step.duration = duration;
    step.prefilled_tokens = step.prefill_rows;
    now_ += duration;
    meter_.OnStep(step);
  }
  void Decode(int batch, int depth, milliseconds duration) {
    Step({.decode_rows = batch,
          .decode_sequences = batch,
          .decode_context_tokens = static_cast<std::uint64_t>(batch) * depth,
          .sampled_tokens = batch},
         duration);
  }
  // A prompt alone, in chunks of 256.
  void Prompt(int tokens, milliseconds chunk) {
    for (int left = tokens; left > 0; left -= 256) {
      const bool last = left <= 256;
      Step({.prefill_rows = std::min(left, 256),
            .sampled_tokens = last ? 1 : 0,
            .prompt_tokens = last ? tokens : 0},
           chunk);
    }
    Step({}, milliseconds(1));
  }
  void Warm() {
    Prompt(7, milliseconds(900));
    Decode(1, 7, milliseconds(900));
  }
  void Land(std::string transport, std::size_t bytes, double seconds, int moves = 0) {
    meter_.OnLanded(
        {.bytes = bytes,
         .moves = moves,
         .receiving = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)),
         .transport = std::move(transport)});
  }

  TimePoint now_ = TimePoint(std::chrono::hours(1));
  RateMeter meter_;
};

TEST_F(RateMeterTest, SaysNothingBeforeItHasSeenAnything) {
  EXPECT_EQ(meter_.rates().ByteSizeLong(), 0u);
  Warm();  // not what it is like
  EXPECT_EQ(meter_.rates().ByteSizeLong(), 0u);
}

TEST_F(RateMeterTest, APromptTakesFromItsFirstRowToItsFirstToken) {
  Warm();
  Prompt(600, milliseconds(100));  // three chunks
  const v1::WorkerRates rates = meter_.rates();
  ASSERT_EQ(rates.prefill_size(), 1);
  EXPECT_DOUBLE_EQ(rates.prefill(0).prompt_tokens(), 600);
  EXPECT_NEAR(rates.prefill(0).tokens_per_second(), 2000, 1e-6);
}

TEST_F(RateMeterTest, PromptsAreKeptApartByPowersOfTwoOfTheirLength) {
  Warm();
  Prompt(100, milliseconds(50));
  Prompt(2000, milliseconds(100));
  Prompt(120, milliseconds(70));
  const v1::WorkerRates rates = meter_.rates();
  ASSERT_EQ(rates.prefill_size(), 2);
  EXPECT_DOUBLE_EQ(rates.prefill(0).prompt_tokens(), 110);
  EXPECT_NEAR(rates.prefill(0).tokens_per_second(), 110 / 0.06, 1e-6);
  EXPECT_DOUBLE_EQ(rates.prefill(1).prompt_tokens(), 2000);
  EXPECT_NEAR(rates.prefill(1).tokens_per_second(), 2000 / 0.8, 1e-6);
}

TEST_F(RateMeterTest, OldPromptsAreForgotten) {
  Warm();
  Prompt(100, milliseconds(1000));
  for (int i = 0; i < 80; ++i) {
    Prompt(100, milliseconds(10));
  }
  EXPECT_NEAR(meter_.rates().prefill(0).tokens_per_second(), 100 / 0.01, 100);
}

TEST_F(RateMeterTest, PromptsWithCachedTokensDoNotCount) {
  Warm();
  Step({.prefill_rows = 40, .cached_tokens = 60, .sampled_tokens = 1, .prompt_tokens = 100},
       milliseconds(10));
  EXPECT_EQ(meter_.rates().prefill_size(), 0);
}

TEST_F(RateMeterTest, PromptsBesideDecodingSequencesDoNotCount) {
  Warm();
  Step({.prefill_rows = 100,
        .decode_rows = 1,
        .decode_sequences = 1,
        .decode_context_tokens = 9,
        .sampled_tokens = 2,
        .prompt_tokens = 100},
       milliseconds(10));
  Step({.prefill_rows = 100,
        .decode_rows = 1,
        .decode_sequences = 1,
        .decode_context_tokens = 9,
        .sampled_tokens = 1},
       milliseconds(10));
  Step({.prefill_rows = 100, .sampled_tokens = 1, .prompt_tokens = 200}, milliseconds(10));
  EXPECT_EQ(meter_.rates().prefill_size(), 0);
  EXPECT_EQ(meter_.rates().decode_size(), 0);
}

TEST_F(RateMeterTest, PromptsThatShareStepsDoNotCount) {
  Warm();
  // Two of 100, one of which ends first; and the one that remains meets a third.
  Step({.prefill_rows = 150, .sampled_tokens = 1, .prompt_tokens = 100}, milliseconds(10));
  Step({.prefill_rows = 100}, milliseconds(10));
  Step({.prefill_rows = 50, .sampled_tokens = 2, .prompt_tokens = 200}, milliseconds(10));
  // Two that end together, alone.
  Step({}, milliseconds(1));
  Step({.prefill_rows = 200, .sampled_tokens = 2, .prompt_tokens = 200}, milliseconds(10));
  EXPECT_EQ(meter_.rates().prefill_size(), 0);
  // The next one, after the others are through.
  Step({}, milliseconds(1));
  Prompt(100, milliseconds(10));
  EXPECT_EQ(meter_.rates().prefill_size(), 1);
}

TEST_F(RateMeterTest, AnAbandonedPromptDoesNotCount) {
  Warm();
  Step({.prefill_rows = 200}, milliseconds(10));
  Step({}, milliseconds(1));  // cancelled
  Step({.prefill_rows = 50, .sampled_tokens = 1, .prompt_tokens = 50}, milliseconds(10));
  const v1::WorkerRates rates = meter_.rates();
  ASSERT_EQ(rates.prefill_size(), 1);
  EXPECT_DOUBLE_EQ(rates.prefill(0).prompt_tokens(), 50);
}

TEST_F(RateMeterTest, DecodeStepsAreKeptApartByBatchAndDepth) {
  Warm();
  Decode(1, 100, milliseconds(10));
  Decode(1, 120, milliseconds(20));
  Decode(4, 100, milliseconds(30));
  Decode(4, 1000, milliseconds(40));
  const v1::WorkerRates rates = meter_.rates();
  ASSERT_EQ(rates.decode_size(), 3);
  EXPECT_DOUBLE_EQ(rates.decode(0).batch(), 1);
  EXPECT_DOUBLE_EQ(rates.decode(0).depth_tokens(), 110);
  EXPECT_DOUBLE_EQ(rates.decode(0).step_seconds(), 0.015);
  EXPECT_DOUBLE_EQ(rates.decode(1).batch(), 4);
  EXPECT_DOUBLE_EQ(rates.decode(1).depth_tokens(), 100);
  EXPECT_DOUBLE_EQ(rates.decode(2).depth_tokens(), 1000);
  EXPECT_DOUBLE_EQ(rates.decode(2).step_seconds(), 0.04);
}

TEST_F(RateMeterTest, StepsThatFailedOrComputeAgainDoNotCount) {
  Warm();
  Step({.decode_rows = 2, .decode_sequences = 2, .decode_context_tokens = 9}, milliseconds(10));
  // After a preemption output tokens are computed many at a time.
  Step({.decode_rows = 30, .decode_sequences = 1, .decode_context_tokens = 40, .sampled_tokens = 1},
       milliseconds(10));
  EXPECT_EQ(meter_.rates().decode_size(), 0);
}

TEST_F(RateMeterTest, TransfersGiveFixedSecondsAndARate) {
  for (const std::size_t megabytes : {1u, 4u, 16u, 64u}) {
    Land("tcp", megabytes << 20, 0.002 + static_cast<double>(megabytes << 20) / 1e9);
  }
  const v1::WorkerRates rates = meter_.rates();
  ASSERT_EQ(rates.transports_size(), 1);
  EXPECT_EQ(rates.transports(0).name(), "tcp");
  EXPECT_NEAR(rates.transports(0).fixed_seconds(), 0.002, 1e-5);
  EXPECT_NEAR(rates.transports(0).bytes_per_second(), 1e9, 1e6);
}

TEST_F(RateMeterTest, TransfersOfOneSizeGiveARateOnly) {
  for (int i = 0; i < 5; ++i) {
    Land("mapped", 1'000'000, 0.001);
  }
  const v1::WorkerRates rates = meter_.rates();
  ASSERT_EQ(rates.transports_size(), 1);
  EXPECT_EQ(rates.transports(0).fixed_seconds(), 0);
  EXPECT_NEAR(rates.transports(0).bytes_per_second(), 1e9, 1e3);
}

// Larger ones that were quicker than smaller ones: no time is negative, and no rate infinite.
TEST_F(RateMeterTest, NoisyTransfersGiveNothingAbsurd) {
  for (int i = 0; i < 100; ++i) {
    Land("tcp", i % 2 == 0 ? 1'000'000 : 9'000'000, i % 2 == 0 ? 0.01 : 0.001);
  }
  const v1::WorkerRates rates = meter_.rates();
  ASSERT_EQ(rates.transports_size(), 1);
  EXPECT_GE(rates.transports(0).fixed_seconds(), 0);
  EXPECT_GT(rates.transports(0).bytes_per_second(), 9'000'000 / 0.01);
  EXPECT_LE(rates.transports(0).bytes_per_second(), 9'000'000 / 0.001 * 1.001);
}

TEST_F(RateMeterTest, OldTransfersAreForgotten) {
  for (int i = 0; i < 64; ++i) {
    Land("tcp", 1'000'000, 1);
  }
  for (int i = 0; i < 64; ++i) {
    Land("tcp", 1'000'000, 0.01);
  }
  EXPECT_NEAR(meter_.rates().transports(0).bytes_per_second(), 1e8, 1);
}

TEST_F(RateMeterTest, TransfersThatSayNothingOfTheWayDoNotCount) {
  for (int i = 0; i < 5; ++i) {
    Land("grpc", 1'000'000, 0.01);
    Land("inproc", 1'000'000, 0.01);
    Land("tcp", 1'000'000, 0.01, /*moves=*/1);
    Land("tcp", 1'000'000, 0);
  }
  EXPECT_EQ(meter_.rates().transports_size(), 0);
}

}  // namespace
}  // namespace baton
