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
  constexpr int kWidth = 100;
  constexpr int kStride = 130;
  const std::vector<float> input = numbers.Normals(kRows * kWidth);
  const std::vector<float> weight = numbers.Normals(kWidth);
  const auto run = [&](Backend& backend, int first, int count) {
    std::vector<BFloat16> output(static_cast<std::size_t>(count) * kStride);
    const auto rows = TensorView<const float>(input.data(), kRows, kWidth).Rows(first, count);
    const auto view = TensorView<BFloat16>(output.data(), count, kWidth).WithRowStride(kStride);
    EXPECT_TRUE(backend
                    .RmsNorm({.input = rows,
                              .weight = {weight.data(), kWidth},
                              .epsilon = 1e-6f,
                              .output = view})
                    .ok());
    return output;
  };
  const std::vector<BFloat16> together = run(backend(), 0, kRows);

  const std::unique_ptr<Backend> threaded = MakeBackend(3);
  EXPECT_EQ(run(*threaded, 0, kRows), together);
  for (int t = 0; t < kRows; ++t) {
    const std::vector<BFloat16> alone = run(backend(), t, 1);
    ASSERT_EQ(
        std::memcmp(alone.data(), together.data() + t * kStride, alone.size() * sizeof(BFloat16)),
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
