// The work that figures need at the least, against values computed by hand from the shape of
// SmolLM2-135M: 30 layers of 576 x 960 (query, key, value) + 576 x 576 + 576 x 3072 + 1536 x 576 =
// 3,538,944 weights, a head of 49,152 x 576 = 28,311,552.
#include "bench/work_model.h"

#include <gtest/gtest.h>

#include <array>

#include "bench/figure.h"

namespace baton {
namespace {

constexpr ModelConfig kSmolLm2 = {.layers = 30,
                                  .hidden = 576,
                                  .feed_forward = 1536,
                                  .heads = 9,
                                  .kv_heads = 3,
                                  .head_dim = 64,
                                  .vocabulary = 49152};

TEST(WorkModel, WeightsAreCountedByTheirMatrices) {
  EXPECT_EQ(LinearWeights(kSmolLm2), 30.0 * 3'538'944);
  EXPECT_EQ(HeadWeights(kSmolLm2), 28'311'552);
  EXPECT_EQ(KvBytesPerToken(kSmolLm2), 22.5 * 1024);
  EXPECT_EQ(AttentionFlopsPerKey(kSmolLm2), 69'120);
}

TEST(WorkModel, HeadsNeedNotSpanTheHiddenWidth) {
  ModelConfig config = kSmolLm2;
  config.layers = 1;
  config.head_dim = 32;  // H * D = 288
  // 576 x (288 + 2 x 96) + 288 x 576 + 3 x 576 x 1536
  EXPECT_EQ(LinearWeights(config), 276'480 + 165'888 + 2'654'208);
}

TEST(WorkModel, PrefillReadsWeightsOnceAndRunsTheHeadOnce) {
  const Work work = PrefillWork(kSmolLm2, 512);

  EXPECT_DOUBLE_EQ(work.flops, 108'716'359'680.0      // 2 x 106,168,320 x 512
                                   + 9'077'391'360.0  // 512 x 513 / 2 keys x 69,120
                                   + 56'623'104.0);   // head
  EXPECT_DOUBLE_EQ(work.bytes, 268'959'744);          // 2 x (106,168,320 + 28,311,552)
}

TEST(WorkModel, AttentionOfALongPromptGrowsWithItsSquare) {
  const Work work = PrefillWork(kSmolLm2, 2048);

  EXPECT_DOUBLE_EQ(work.flops, 434'865'438'720.0 + 2'098'176.0 * 69'120 + 56'623'104.0);
}

TEST(WorkModel, ADecodeStepReadsWeightsAndEveryKeyOfItsStream) {
  const Work work = DecodeWork(kSmolLm2, {.streams = 1, .depth = 2048, .steps = 1});

  EXPECT_DOUBLE_EQ(work.flops, 268'959'744.0 + 2'049.0 * 69'120);
  EXPECT_DOUBLE_EQ(work.bytes, 268'959'744.0 + 2'049.0 * 23'040);
}

TEST(WorkModel, StepsOfABatchShareWeightsAndGrowByAKeyEach) {
  const Work work = DecodeWork(kSmolLm2, {.streams = 8, .depth = 128, .steps = 4});

  const double keys = 8 * (129 + 130 + 131 + 132);
  EXPECT_DOUBLE_EQ(work.flops, 8 * 4 * 268'959'744.0 + keys * 69'120);
  EXPECT_DOUBLE_EQ(work.bytes, 4 * 268'959'744.0 + keys * 23'040);
}

TEST(WorkModel, TheSlowerOfArithmeticAndReadingIsTheFloor) {
  const Work work{.flops = 400e9, .bytes = 10e9};

  EXPECT_DOUBLE_EQ(FloorSeconds(work, {.flops_per_second = 100e9, .bytes_per_second = 10e9}), 4);
  EXPECT_STREQ(LimitName(work, {.flops_per_second = 100e9, .bytes_per_second = 10e9}), "flops");
  EXPECT_DOUBLE_EQ(FloorSeconds(work, {.flops_per_second = 800e9, .bytes_per_second = 10e9}), 1);
  EXPECT_STREQ(LimitName(work, {.flops_per_second = 800e9, .bytes_per_second = 10e9}), "read");
}

TEST(Figures, NamesAndShapesAreThoseOfTheIssue) {
  std::vector<std::string> names;
  for (const Figure& figure : MakeFigures(std::array{1, 2})) {
    names.push_back(figure.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"prefill_512", "prefill_2048", "decode_0",
                                             "decode_2048", "batch_8", "batch_16", "prefill_512_2t",
                                             "prefill_2048_2t", "decode_0_2t", "decode_2048_2t",
                                             "batch_8_2t", "batch_16_2t"}));
}

TEST(Figures, TokensAreThoseOfAllStreams) {
  const std::vector<Figure> figures = MakeFigures(std::array{4});

  EXPECT_EQ(figures[0].tokens(), 512);
  EXPECT_EQ(figures[2].tokens(), 64);
  EXPECT_EQ(figures[5].tokens(), 16 * 32);
  EXPECT_EQ(figures[5].threads, 4);
  EXPECT_EQ(figures[3].sequence_tokens(), 2048 + 64 + 1);
}

}  // namespace
}  // namespace baton
