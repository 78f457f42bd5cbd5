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
    const Array<float> device_input(backend(), input);
    const Array<float> device_weight(backend(), weight);
    const Array<BFloat16> output(backend(), std::vector<BFloat16>(kRows * size));

    const absl::Status status = backend().RmsNorm({.input = {device_input.data(), kRows, width},
                                                   .weight = {device_weight.data(), width},
                                                   .epsilon = 1e-5f,
                                                   .output = {output.data(), kRows, width}});

    ASSERT_TRUE(status.ok()) << status;
    std::vector<double> expected;
    for (std::size_t t = 0; t < kRows; ++t) {
      const reference::Row row =
          reference::RmsNorm(RowOf(input, t, size), ToDoubles(weight), static_cast<double>(1e-5f));
      expected.insert(expected.end(), row.begin(), row.end());
    }
    ExpectClose(ToDoubles(output.Read()), expected, kRoundedOnce);
  }
}

TEST_P(RowOpsTest, RmsNormTakesTheRowsItIsTold) {
  Numbers numbers(42);
  const Array<float> input(backend(), numbers.Normals(6 * 20));
  const Array<float> weight(backend(), numbers.Normals(20));
  const Array<BFloat16> all(backend(), std::vector<BFloat16>(6 * 20));
  const Array<BFloat16> some(backend(), std::vector<BFloat16>(3 * 20, ToBFloat16(7)));
  RmsNormArgs args{.input = {input.data(), 6, 20},
                   .weight = {weight.data(), 20},
                   .epsilon = 1e-5f,
                   .output = {all.data(), 6, 20}};
  ASSERT_TRUE(backend().RmsNorm(args).ok());

  const std::vector<int> rows = {5, kIdleRow, 2};
  args.rows = rows;
  args.output = {some.data(), 3, 20};
  ASSERT_TRUE(backend().RmsNorm(args).ok());

  const std::vector<BFloat16> expected = all.Read();
  const std::vector<BFloat16> taken = some.Read();
  EXPECT_EQ(std::memcmp(taken.data(), expected.data() + 5 * 20, 20 * sizeof(BFloat16)), 0);
  EXPECT_EQ(std::memcmp(taken.data() + 40, expected.data() + 2 * 20, 20 * sizeof(BFloat16)), 0);
  for (std::size_t i = 20; i < 40; ++i) {
    ASSERT_EQ(taken[i], BFloat16{}) << "an idle row: " << i;
  }
}

TEST_P(RowOpsTest, EmbeddingsAreTheRowsOfThePackedWeight) {
  Numbers numbers(44);
  constexpr int kVocabulary = 77;
  for (const int width : {2, 18, 64, 190}) {
    const auto size = static_cast<std::size_t>(width);
    const std::vector<float> values = RoundedToBFloat16(numbers.Normals(kVocabulary * size));
    const std::unique_ptr<PackedWeight> embedding = Pack(backend(), kVocabulary, width, values);
    const std::vector<TokenId> tokens = {TokenId(0), TokenId(76), TokenId(31),
                                         kIdleToken, TokenId(32), TokenId(31)};
    const int count = static_cast<int>(tokens.size());
    const Array<float> hidden(backend(), std::vector<float>(tokens.size() * size, 7.0f));

    const absl::Status status = backend().EmbedTokens(
        {.tokens = tokens, .embedding = embedding.get(), .hidden = {hidden.data(), count, width}});

    ASSERT_TRUE(status.ok()) << status;
    const std::vector<float> rows = hidden.Read();
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const auto expected =
          tokens[t] == kIdleToken ? reference::Row(size) : RowOf(values, tokens[t].value(), size);
      EXPECT_EQ(RowOf(rows, t, size), expected) << t;
    }
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
    const Array<float> device_input(backend, input);
    const Array<float> device_weight(backend, weight);
    const Array<BFloat16> output(backend,
                                 std::vector<BFloat16>(static_cast<std::size_t>(count) * kStride));
    const auto rows =
        TensorView<const float>(device_input.data(), kRows, kWidth).Rows(first, count);
    const auto view = TensorView<BFloat16>(output.data(), count, kWidth).WithRowStride(kStride);
    EXPECT_TRUE(backend
                    .RmsNorm({.input = rows,
                              .weight = {device_weight.data(), kWidth},
                              .epsilon = 1e-6f,
                              .output = view})
                    .ok());
    return output.Read();
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
  constexpr std::size_t kBytes = 3 << 20;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = backend().Allocate(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->size_bytes(), kBytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*memory)->data()) % 4096, 0u);
  std::vector<std::byte> content(kBytes, std::byte{1});
  const auto read = [&] {
    return backend().Copy({.destination = content.data(),
                           .source = (*memory)->data(),
                           .bytes = kBytes,
                           .direction = CopyDirection::kDeviceToHost});
  };
  ASSERT_TRUE(read().ok());
  ASSERT_TRUE(backend().Synchronize().ok());
  EXPECT_TRUE(std::ranges::all_of(content, [](std::byte each) { return each == std::byte{0}; }));

  const std::vector<std::byte> source(100, std::byte{5});
  std::byte* const destination = (*memory)->data() + 1000;
  ASSERT_TRUE(backend()
                  .Copy({.destination = destination,
                         .source = source.data(),
                         .bytes = 100,
                         .direction = CopyDirection::kHostToDevice})
                  .ok());
  ASSERT_TRUE(backend()
                  .Copy({.destination = destination + 200,
                         .source = destination + 50,
                         .bytes = 50,
                         .direction = CopyDirection::kDeviceToDevice})
                  .ok());
  ASSERT_TRUE(read().ok());
  ASSERT_TRUE(backend().Synchronize().ok());
  for (std::size_t i = 0; i < 400; ++i) {
    const bool written = i < 100 || (i >= 200 && i < 250);
    ASSERT_EQ(content[1000 + i], written ? std::byte{5} : std::byte{0}) << i;
  }
}

// More than any staging piece holds, of a size that is no multiple of anything.
TEST_P(RowOpsTest, CopiesOfAnySizeArriveWhole) {
  Numbers numbers(46);
  std::vector<int> values((9 << 20) / 4 + 13);
  std::ranges::generate(values, [&] { return numbers.Below(1 << 30); });
  const Array<int> array(backend(), values);
  EXPECT_EQ(array.Read(), values);
}

TEST_P(RowOpsTest, SaysHowMuchMemoryThereIs) {
  const absl::StatusOr<MemoryBudget> before = backend().Memory();
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_GT(before->free_bytes, 0u);
  EXPECT_GT(before->default_pool_bytes, 0u);
  if (IsCuda()) {
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    const auto memory = backend().Allocate(kBytes);
    ASSERT_TRUE(memory.ok());
    const MemoryBudget after = *backend().Memory();
    EXPECT_LE(after.free_bytes, before->free_bytes - kBytes);
    EXPECT_LT(after.default_pool_bytes, after.free_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(On, RowOpsTest, kEveryBackend, BackendTestName);

}  // namespace
}  // namespace baton
