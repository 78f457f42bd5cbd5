#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "tests/kernels/kernel_test_support.h"

namespace baton {
namespace {

constexpr int kColumns = 70;  // K

class GatedMatMulTest : public KernelTest {
 protected:
  static std::vector<BFloat16> Multiply(Backend& backend,
                                        const std::vector<BFloat16>& input,
                                        int first,
                                        int rows,
                                        const PackedWeight& weight) {
    const int columns = weight.columns();
    const int width = weight.rows() / 2;
    const Array<BFloat16> device_input(backend, input);
    const Array<BFloat16> output(backend, std::vector<BFloat16>(static_cast<std::size_t>(rows) *
                                                                    static_cast<std::size_t>(width),
                                                                ToBFloat16(std::nanf(""))));
    const TensorView<const BFloat16> all(device_input.data(),
                                         static_cast<int>(input.size()) / columns, columns);
    const absl::Status status = backend.GatedMatMul({.input = all.Rows(first, rows),
                                                     .weight = &weight,
                                                     .output = {output.data(), rows, width}});
    EXPECT_TRUE(status.ok()) << status;
    return output.Read();
  }

  std::unique_ptr<PackedWeight> RandomWeight(Backend& backend, Numbers& numbers, int width) {
    return Pack(backend, 2 * width, kColumns,
                RoundedToBFloat16(numbers.Normals(static_cast<std::size_t>(2 * width) * kColumns)));
  }
};

// Widths on the grid of panels and off it.
constexpr int kWidths[] = {1, 15, 16, 17, 32, 64, 97, 160};

// What is activated are the very sums of MatMul, so only the activation is left to the oracle.
TEST_P(GatedMatMulTest, AgreesWithTheOracle) {
  Numbers numbers(71);
  SCOPED_TRACE(numbers.Describe());
  for (const int width : kWidths) {
    for (const int rows : {1, 9, 50}) {
      SCOPED_TRACE(testing::Message() << "F " << width << " T " << rows);
      const std::vector<BFloat16> input =
          numbers.NormalBFloat16s(static_cast<std::size_t>(rows) * kColumns);
      const std::unique_ptr<PackedWeight> weight = RandomWeight(backend(), numbers, width);
      const Array<BFloat16> device_input(backend(), input);
      const Array<float> products(
          backend(),
          std::vector<float>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(2 * width)));
      ASSERT_TRUE(backend()
                      .MatMul({.input = {device_input.data(), rows, kColumns},
                               .weight = weight.get(),
                               .output = {products.data(), rows, 2 * width}})
                      .ok());
      const std::vector<float> gate_up = products.Read();

      const std::vector<BFloat16> output = Multiply(backend(), input, 0, rows, *weight);

      std::vector<double> expected;
      const auto size = static_cast<std::size_t>(width);
      for (std::size_t t = 0; t < static_cast<std::size_t>(rows); ++t) {
        const reference::Row row =
            reference::SiluMultiply(RowOf(gate_up, 2 * t, size), RowOf(gate_up, 2 * t + 1, size));
        expected.insert(expected.end(), row.begin(), row.end());
      }
      ExpectClose(ToDoubles(output), expected, kRoundedOnce);
    }
  }
}

// An input of one and zero takes gate and up straight out of the weight.
TEST_P(GatedMatMulTest, HoldsAtTheEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> gates = {0.0f,  -0.0f,  100.0f,        -100.0f,
                                    3e38f, -3e38f, std::nanf(""), inf};
  const std::vector<BFloat16> input = {ToBFloat16(1), ToBFloat16(0)};
  for (const std::size_t width : {std::size_t{8}, std::size_t{32}}) {
    SCOPED_TRACE(testing::Message() << "F " << width);
    std::vector<float> values(2 * width * 2, 0.0f);
    for (std::size_t i = 0; i < width; ++i) {
      values[2 * i] = gates[i % gates.size()];
      values[2 * (width + i)] = 1.0f;
    }
    const std::unique_ptr<PackedWeight> weight =
        Pack(backend(), static_cast<int>(2 * width), 2, RoundedToBFloat16(values));

    const std::vector<BFloat16> output = Multiply(backend(), input, 0, 1, *weight);

    EXPECT_EQ(ToFloat(output[0]), 0.0f);
    EXPECT_EQ(ToFloat(output[1]), 0.0f);
    EXPECT_EQ(ToFloat(output[2]), 100.0f);
    EXPECT_NEAR(static_cast<double>(ToFloat(output[3])), 0.0, 1e-35);
    EXPECT_GT(ToFloat(output[4]), 2.9e38f);
    // 3e38 times a weight that is not quite zero.
    EXPECT_NEAR(static_cast<double>(ToFloat(output[5])), 0.0, 4.0);
    EXPECT_TRUE(std::isnan(ToFloat(output[6])));
    EXPECT_EQ(ToFloat(output[7]), inf);
  }
}

TEST_P(GatedMatMulTest, ARowDoesNotDependOnBatchOrThreads) {
  if (GetParam() == "cuda") {
    GTEST_SKIP() << "cuBLASLt chooses an algorithm by the number of rows";
  }
  Numbers numbers(72);
  SCOPED_TRACE(numbers.Describe());
  constexpr int kRows = 131;
  // On the grid in both, few rows may read another form of the weight than many.
  for (const auto& [width, columns] : {std::pair{17, kColumns}, {64, kColumns}, {64, 96}}) {
    SCOPED_TRACE(testing::Message() << "F " << width << " K " << columns);
    const std::vector<BFloat16> input =
        numbers.NormalBFloat16s(static_cast<std::size_t>(kRows * columns));
    std::vector<float> values =
        RoundedToBFloat16(numbers.Normals(static_cast<std::size_t>(2 * width * columns)));
    values[5] = 0x1p-120f;
    values[values.size() - 9] = -0x1p-90f;
    const std::unique_ptr<PackedWeight> weight = Pack(backend(), 2 * width, columns, values);
    const std::vector<BFloat16> together = Multiply(backend(), input, 0, kRows, *weight);

    for (const int size : {1, 2, 13, 16, 17, 32, 33, 60}) {
      for (int first = 0; first < kRows; first += size) {
        const int count = std::min(size, kRows - first);
        const std::vector<BFloat16> part = Multiply(backend(), input, first, count, *weight);
        ASSERT_EQ(std::memcmp(part.data(), together.data() + first * width,
                              part.size() * sizeof(BFloat16)),
                  0)
            << "rows " << first << " to " << first + count;
      }
    }
    const std::unique_ptr<Backend> threaded = MakeBackend(3);
    const std::unique_ptr<PackedWeight> same = Pack(*threaded, 2 * width, columns, values);
    EXPECT_EQ(Multiply(*threaded, input, 0, kRows, *same), together);
  }
}

INSTANTIATE_TEST_SUITE_P(On, GatedMatMulTest, kEveryBackend, BackendTestName);

}  // namespace
}  // namespace baton
