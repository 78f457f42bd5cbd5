#include <cmath>
#include <cstring>

#include "tests/kernels/kernel_test_support.h"

namespace baton {
namespace {

using RowOpsTest = KernelTest;

constexpr int kWidths[] = {2, 15, 16, 17, 31, 64, 97, 576, 1536};

TEST_P(RowOpsTest, RmsNormAgreesWithTheOracle) {
  Numbers numbers(41);
  SCOPED_TRACE(numbers.Describe());
  for (const int width : kWidths) {
    SCOPED_TRACE(testing::Message() << "E " << width);
    const auto size = static_cast<std::size_t>(width);
    constexpr int kRows = 5;
    std::vector<float> input = numbers.Normals(kRows * size);
    for (std::size_t i = 0; i < size; ++i) {
      input[i] *= 1e-3f;  // a row where epsilon counts
      input[size + i] *= 1e3f;
    }
    const std::vector<float> weight = numbers.Normals(size);
    std::vector<BFloat16> output(kRows * size);

    const absl::Status status = backend().RmsNorm({.input = {input.data(), kRows, width},
                                                   .weight = {weight.data(), width},
                                                   .epsilon = 1e-5f,
                                                   .output = {output.data(), kRows, width}});

    ASSERT_TRUE(status.ok()) << status;
    std::vector<double> expected;
    for (std::size_t t = 0; t < kRows; ++t) {
      const reference::Row row =
          reference::RmsNorm(RowOf(input, t, size), ToDoubles(weight), static_cast<double>(1e-5f));
      expected.insert(expected.end(), row.begin(), row.end());
    }
    ExpectClose(ToDoubles(output), expected, kRoundedOnce);
  }
}

TEST_P(RowOpsTest, RmsNormTakesTheRowsItIsTold) {
  Numbers numbers(42);
  const std::vector<float> input = numbers.Normals(6 * 20);
  const std::vector<float> weight = numbers.Normals(20);
  std::vector<BFloat16> all(6 * 20);
  std::vector<BFloat16> some(2 * 20);
  RmsNormArgs args{.input = {input.data(), 6, 20},
                   .weight = {weight.data(), 20},
                   .epsilon = 1e-5f,
                   .output = {all.data(), 6, 20}};
  ASSERT_TRUE(backend().RmsNorm(args).ok());

  const std::vector<int> rows = {5, 2};
  args.rows = rows;
  args.output = {some.data(), 2, 20};
  ASSERT_TRUE(backend().RmsNorm(args).ok());

  EXPECT_EQ(std::memcmp(some.data(), all.data() + 5 * 20, 20 * sizeof(BFloat16)), 0);
  EXPECT_EQ(std::memcmp(some.data() + 20, all.data() + 2 * 20, 20 * sizeof(BFloat16)), 0);
}

TEST_P(RowOpsTest, SiluMultiplyAgreesWithTheOracle) {
  Numbers numbers(43);
  SCOPED_TRACE(numbers.Describe());
  for (const int width : kWidths) {
    SCOPED_TRACE(testing::Message() << "F " << width);
    const auto size = static_cast<std::size_t>(width);
    constexpr int kRows = 9;
    std::vector<float> gate_up = numbers.Normals(kRows * 2 * size);
    for (float& x : gate_up) {
      x *= 8;
    }
    std::vector<BFloat16> output(kRows * size);

    const absl::Status status = backend().SiluMultiply(
        {.gate_up = {gate_up.data(), kRows, 2 * width}, .output = {output.data(), kRows, width}});

    ASSERT_TRUE(status.ok()) << status;
    std::vector<double> expected;
    for (std::size_t t = 0; t < kRows; ++t) {
      const reference::Row row =
          reference::SiluMultiply(RowOf(gate_up, 2 * t, size), RowOf(gate_up, 2 * t + 1, size));
      expected.insert(expected.end(), row.begin(), row.end());
    }
    ExpectClose(ToDoubles(output), expected, kRoundedOnce);
  }
}

TEST_P(RowOpsTest, SiluMultiplyHoldsAtTheEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> gate_up = {0.0f, -0.0f, 100.0f, -100.0f, 3e38f, -3e38f, std::nanf(""), inf};
  gate_up.resize(16, 1.0f);
  std::vector<BFloat16> output(8);

  ASSERT_TRUE(
      backend()
          .SiluMultiply({.gate_up = {gate_up.data(), 1, 16}, .output = {output.data(), 1, 8}})
          .ok());

  EXPECT_EQ(ToFloat(output[0]), 0.0f);
  EXPECT_EQ(ToFloat(output[1]), 0.0f);
  EXPECT_EQ(ToFloat(output[2]), 100.0f);
  EXPECT_NEAR(static_cast<double>(ToFloat(output[3])), 0.0, 1e-35);
  EXPECT_GT(ToFloat(output[4]), 2.9e38f);
  EXPECT_NEAR(static_cast<double>(ToFloat(output[5])), 0.0,
              4.0);  // 3e38 times a weight that is not quite zero
  EXPECT_TRUE(std::isnan(ToFloat(output[6])));
  EXPECT_EQ(ToFloat(output[7]), inf);
}

TEST_P(RowOpsTest, EmbeddingsAreTheRowsOfThePackedWeight) {
  Numbers numbers(44);
  constexpr int kVocabulary = 77;
  constexpr int kWidth = 18;
  const std::vector<float> values = RoundedToBFloat16(numbers.Normals(kVocabulary * kWidth));
  const std::unique_ptr<PackedWeight> embedding = Pack(backend(), kVocabulary, kWidth, values);
  const std::vector<TokenId> tokens = {TokenId(0), TokenId(76), TokenId(31), TokenId(32),
                                       TokenId(31)};
  std::vector<float> hidden(tokens.size() * kWidth);

  const absl::Status status = backend().EmbedTokens(
      {.tokens = tokens, .embedding = embedding.get(), .hidden = {hidden.data(), 5, kWidth}});

  ASSERT_TRUE(status.ok()) << status;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    EXPECT_EQ(RowOf(hidden, t, kWidth), RowOf(values, tokens[t].value(), kWidth)) << t;
  }
}

TEST_P(RowOpsTest, RowsDoNotDependOnBatchOrThreads) {
  Numbers numbers(45);
  SCOPED_TRACE(numbers.Describe());
  constexpr int kRows = 45;
  constexpr int kWidth = 50;
  const std::vector<float> input = numbers.Normals(kRows * 2 * kWidth);
  const std::vector<float> weight = numbers.Normals(2 * kWidth);
  const auto run = [&](Backend& backend, int first, int count) {
    std::vector<BFloat16> output(static_cast<std::size_t>(count) * 3 * kWidth);
    const TensorView<const float> view =
        TensorView<const float>(input.data(), kRows, 2 * kWidth).Rows(first, count);
    EXPECT_TRUE(backend
                    .RmsNorm({.input = view,
                              .weight = {weight.data(), 2 * kWidth},
                              .epsilon = 1e-6f,
                              .output = TensorView<BFloat16>(output.data(), count, 2 * kWidth)
                                            .WithRowStride(3 * kWidth)})
                    .ok());
    EXPECT_TRUE(
        backend
            .SiluMultiply({.gate_up = view,
                           .output = TensorView<BFloat16>(output.data() + 2 * kWidth, count, kWidth)
                                         .WithRowStride(3 * kWidth)})
            .ok());
    return output;
  };
  const std::vector<BFloat16> together = run(backend(), 0, kRows);

  const std::unique_ptr<Backend> threaded = MakeBackend(3);
  EXPECT_EQ(run(*threaded, 0, kRows), together);
  for (int t = 0; t < kRows; ++t) {
    const std::vector<BFloat16> alone = run(backend(), t, 1);
    ASSERT_EQ(std::memcmp(alone.data(), together.data() + t * 3 * kWidth,
                          alone.size() * sizeof(BFloat16)),
              0)
        << t;
  }
}

TEST_P(RowOpsTest, AllocatesZeroedAlignedMemoryAndCopies) {
  absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = backend().Allocate(3 << 20);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->size_bytes(), std::size_t{3} << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*memory)->data()) % 4096, 0u);
  for (std::size_t i = 0; i < (*memory)->size_bytes(); ++i) {
    ASSERT_EQ((*memory)->data()[i], std::byte{0}) << i;
  }

  const std::vector<std::byte> source(100, std::byte{5});
  std::byte* destination = (*memory)->data() + 1000;
  ASSERT_TRUE(
      backend().Copy({.destination = destination, .source = source.data(), .bytes = 100}).ok());
  EXPECT_EQ(std::memcmp(destination, source.data(), 100), 0);
  EXPECT_EQ(destination[100], std::byte{0});
  EXPECT_TRUE(backend().Synchronize().ok());
}

INSTANTIATE_TEST_SUITE_P(Isa, RowOpsTest, kEveryIsa, IsaTestName);

}  // namespace
}  // namespace baton
