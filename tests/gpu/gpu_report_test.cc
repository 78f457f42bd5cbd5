#include "tests/gpu/gpu_report.h"

#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "tests/gpu/shape_model.h"
#include "tests/support/tiny_checkpoint.h"

namespace baton {
namespace {

// 3 GB and 2 TFLOP in 2 ms, of 3 TB/s and 4,000 TFLOP/s: half of what the memory allows.
TEST(GpuReport, RatesAndSharesAreOfTheTimeGiven) {
  const Figure figure{.name = "decode",
                      .kind = FigureKind::kDecode,
                      .decode = {.streams = 8, .depth = 100, .steps = 5}};
  EXPECT_EQ(FormatRow(figure, {.flops = 2e12, .bytes = 3e9},
                      {.flops_per_second = 4e15, .bytes_per_second = 3e12}, 0.002),
            "decode                         2.000 ms    20000 tok/s  1500.0 GB/s  50.0%  1000.00 "
            "TFLOP/s  25.0%   50.0% of what read allows");
}

TEST(GpuReport, NamesTheCeilingThatCounts) {
  const Figure figure{.name = "prefill", .prompt_tokens = 100};
  const std::string row = FormatRow(figure, {.flops = 1e12, .bytes = 1e6},
                                    {.flops_per_second = 1e15, .bytes_per_second = 1e12}, 0.004);
  EXPECT_NE(row.find(" 25.0% of what flops allows"), std::string::npos) << row;
  EXPECT_NE(row.find(" 25000 tok/s"), std::string::npos) << row;
}

TEST(ShapeModel, OpensWithItsShapeAndWeightsOfTheRightSize) {
  const ModelConfig shape{.name = "shape",
                          .layers = 3,
                          .hidden = 96,
                          .feed_forward = 160,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 32,
                          .vocabulary = 3000,
                          .context_tokens = 500,
                          .rms_epsilon = 1e-5f,
                          .rope_base = 10000,
                          .tied_head = false};
  const TemporaryFolder folder;
  ASSERT_TRUE(WriteShapeModel(shape, folder.path().string()).ok());
  const absl::StatusOr<std::unique_ptr<Checkpoint>> opened =
      Checkpoint::Open(folder.path().string());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->config(), shape);
  const auto mean_square = [&](WeightKind kind, int rows, int columns) {
    std::vector<float> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    EXPECT_TRUE((*opened)->ReadRows(kind, LayerIndex(2), 0, rows, values).ok());
    double sum = 0;
    double positive = 0;
    for (const float value : values) {
      sum += double{value} * value;
      positive += value > 0 ? 1 : 0;
    }
    const auto count = static_cast<double>(values.size());
    EXPECT_TRUE(IsNorm(kind) || (positive > count * 0.4 && positive < count * 0.6));
    return sum / count;
  };
  EXPECT_EQ(mean_square(WeightKind::kFeedForwardNorm, 1, 96), 1);
  // A product of random values of size 1 with a row is of size 1, give or take a factor of two.
  for (const double size :
       {96 * mean_square(WeightKind::kGate, 160, 96), 160 * mean_square(WeightKind::kDown, 96, 160),
        96 * mean_square(WeightKind::kHead, 3000, 96)}) {
    EXPECT_GT(size, 0.25);
    EXPECT_LT(size, 4);
  }
}

TEST(ShapeModel, RefusesWhatIsNoModel) {
  const TemporaryFolder folder;
  EXPECT_EQ(WriteShapeModel({.name = "nothing"}, folder.path().string()).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
