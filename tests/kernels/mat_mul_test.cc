#include <cmath>
#include <cstring>
#include <iterator>

#include "tests/kernels/kernel_test_support.h"

namespace baton {
namespace {

struct Shape {
  int tokens;   // T
  int columns;  // K
  int rows;     // N
};

class MatMulTest : public KernelTest {
 protected:
  static std::vector<BFloat16> Inputs(Numbers& numbers, const Shape& shape) {
    return numbers.NormalBFloat16s(static_cast<std::size_t>(shape.tokens) *
                                   static_cast<std::size_t>(shape.columns));
  }

  static std::vector<float> Weights(Numbers& numbers, const Shape& shape) {
    return RoundedToBFloat16(numbers.Normals(static_cast<std::size_t>(shape.rows) *
                                             static_cast<std::size_t>(shape.columns)));
  }

  // [tokens, N] for rows [first, first + tokens) of `input`.
  static std::vector<float> Multiply(Backend& backend,
                                     const std::vector<BFloat16>& input,
                                     int first,
                                     int tokens,
                                     const PackedWeight& weight) {
    const Array<BFloat16> device_input(backend, input);
    const TensorView<const BFloat16> all(
        device_input.data(), static_cast<int>(input.size()) / weight.columns(), weight.columns());
    const Array<float> output(
        backend, std::vector<float>(
                     static_cast<std::size_t>(tokens) * static_cast<std::size_t>(weight.rows()),
                     std::nanf("")));
    const absl::Status status = backend.MatMul({.input = all.Rows(first, tokens),
                                                .weight = &weight,
                                                .output = {output.data(), tokens, weight.rows()}});
    EXPECT_TRUE(status.ok()) << status;
    return output.Read();
  }

  // Products of bf16 values are exact in float, so a sum of K of them is off by at most K rounding
  // errors of 2^-24 of the sum of absolute values, in whatever order (Higham, Accuracy and
  // Stability, 3.1).
  static void ExpectWithinRounding(const std::vector<float>& output,
                                   const std::vector<BFloat16>& input,
                                   const std::vector<float>& weight,
                                   const Shape& shape) {
    const auto width = static_cast<std::size_t>(shape.columns);
    const auto rows = static_cast<std::size_t>(shape.rows);
    for (std::size_t t = 0; t < static_cast<std::size_t>(shape.tokens); ++t) {
      for (std::size_t n = 0; n < rows; ++n) {
        double sum = 0;
        double magnitude = 0;
        for (std::size_t k = 0; k < width; ++k) {
          const double product = static_cast<double>(ToFloat(input[t * width + k])) *
                                 static_cast<double>(weight[n * width + k]);
          sum += product;
          magnitude += std::abs(product);
        }
        const double actual = static_cast<double>(output[t * rows + n]);
        ASSERT_TRUE(std::abs(actual - sum) <= shape.columns * 0x1p-24 * magnitude)  // false for NaN
            << "row " << t << " column " << n << ": " << actual << ", expected " << sum;
      }
    }
  }
};

TEST_P(MatMulTest, AgreesWithTheOracle) {
  Numbers numbers(31);
  SCOPED_TRACE(numbers.Describe());
  for (const Shape& shape : {Shape{1, 2, 1},
                             {1, 64, 32},
                             {2, 16, 15},
                             {3, 30, 16},
                             {4, 34, 17},
                             {5, 58, 31},
                             {7, 62, 33},
                             {8, 576, 64},
                             {11, 126, 97},
                             {12, 64, 96},
                             {13, 22, 101},
                             {15, 94, 48},
                             {16, 66, 63},
                             {17, 1536, 65},
                             {31, 32, 64},
                             {33, 96, 40},
                             {25, 10, 47},
                             {37, 74, 127}}) {
    SCOPED_TRACE(testing::Message()
                 << "T " << shape.tokens << " K " << shape.columns << " N " << shape.rows);
    const std::vector<BFloat16> input = Inputs(numbers, shape);
    const std::vector<float> values = Weights(numbers, shape);
    const std::unique_ptr<PackedWeight> weight = Pack(backend(), shape.rows, shape.columns, values);

    const std::vector<float> output = Multiply(backend(), input, 0, shape.tokens, *weight);

    ExpectWithinRounding(output, input, values, shape);
  }
}

TEST_P(MatMulTest, AddsToTheOutputWhenAsked) {
  Numbers numbers(32);
  SCOPED_TRACE(numbers.Describe());
  const Shape shape{9, 32, 45};
  const std::vector<BFloat16> input = Inputs(numbers, shape);
  const std::unique_ptr<PackedWeight> weight =
      Pack(backend(), shape.rows, shape.columns, Weights(numbers, shape));
  const std::vector<float> product = Multiply(backend(), input, 0, shape.tokens, *weight);
  const std::vector<float> before = numbers.Normals(product.size());

  const Array<BFloat16> device_input(backend(), input);
  const Array<float> device_output(backend(), before);
  const absl::Status status =
      backend().MatMul({.input = {device_input.data(), shape.tokens, shape.columns},
                        .weight = weight.get(),
                        .output = {device_output.data(), shape.tokens, shape.rows},
                        .accumulate = true});

  ASSERT_TRUE(status.ok()) << status;
  const std::vector<float> output = device_output.Read();
  for (std::size_t i = 0; i < output.size(); ++i) {
    ASSERT_EQ(output[i], before[i] + product[i]) << i;
  }
}

TEST_P(MatMulTest, LeavesTheGapsBetweenStridedRowsAlone) {
  Numbers numbers(33);
  const Shape shape{3, 8, 33};
  const std::vector<BFloat16> input = Inputs(numbers, shape);
  const std::unique_ptr<PackedWeight> weight =
      Pack(backend(), shape.rows, shape.columns, Weights(numbers, shape));
  const std::vector<float> product = Multiply(backend(), input, 0, shape.tokens, *weight);
  constexpr int kStride = 40;

  const Array<BFloat16> device_input(backend(), input);
  const Array<float> device_output(backend(), std::vector<float>(3 * kStride, 7.0f));
  const auto view = TensorView<float>(device_output.data(), 3, 33).WithRowStride(kStride);
  ASSERT_TRUE(
      backend()
          .MatMul({.input = {device_input.data(), 3, 8}, .weight = weight.get(), .output = view})
          .ok());

  const std::vector<float> output = device_output.Read();
  for (int t = 0; t < 3; ++t) {
    for (int n = 0; n < kStride; ++n) {
      const float expected = n < 33 ? product[static_cast<std::size_t>(t * 33 + n)] : 7.0f;
      ASSERT_EQ(output[static_cast<std::size_t>(t * kStride + n)], expected) << t << " " << n;
    }
  }
}

TEST_P(MatMulTest, ARowDoesNotDependOnTheRowsBesideIt) {
  if (GetParam() == "cuda") {
    GTEST_SKIP() << "cuBLASLt chooses an algorithm by the number of rows";
  }
  Numbers numbers(34);
  SCOPED_TRACE(numbers.Describe());
  const Shape shape{61, 190, 70};
  const std::vector<BFloat16> input = Inputs(numbers, shape);
  const std::unique_ptr<PackedWeight> weight =
      Pack(backend(), shape.rows, shape.columns, Weights(numbers, shape));
  const std::vector<float> together = Multiply(backend(), input, 0, shape.tokens, *weight);

  for (const int size :
       {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 30, 31, 32, 33, 47, 48, 49, 60}) {
    for (int first = 0; first < shape.tokens; first += size) {
      const int count = std::min(size, shape.tokens - first);
      const std::vector<float> part = Multiply(backend(), input, first, count, *weight);
      ASSERT_EQ(std::memcmp(part.data(), together.data() + first * shape.rows,
                            part.size() * sizeof(float)),
                0)
          << "rows " << first << " to " << first + count;
    }
  }
}

// Few rows may read another form of the weight than many. Exponents of every size, of which no form
// of four bits has all.
TEST_P(MatMulTest, FewRowsGiveTheBitsOfMany) {
  if (GetParam() == "cuda") {
    GTEST_SKIP() << "cuBLASLt chooses an algorithm by the number of rows";
  }
  Numbers numbers(38);
  SCOPED_TRACE(numbers.Describe());
  const Shape shape{61, 192, 70};
  const std::vector<BFloat16> input = Inputs(numbers, shape);
  std::vector<float> values = Weights(numbers, shape);
  const float unusual[] = {0.0f, -0.0f, 0x1p-126f, -0x1p-100f, 0x1p20f, -0x1.8p30f};
  for (std::size_t i = 0; i < std::size(unusual); ++i) {
    values[i * 2221 + 7] = unusual[i];
  }
  const std::unique_ptr<PackedWeight> weight = Pack(backend(), shape.rows, shape.columns, values);
  const std::vector<float> together = Multiply(backend(), input, 0, shape.tokens, *weight);

  ExpectWithinRounding(together, input, values, shape);
  for (const int size : {1, 2, 15, 16, 17, 31, 32, 33}) {
    const std::vector<float> part = Multiply(backend(), input, 3, size, *weight);
    ASSERT_EQ(
        std::memcmp(part.data(), together.data() + 3 * shape.rows, part.size() * sizeof(float)), 0)
        << size << " rows";
  }
  if (backend().arithmetic() == "cpu-amx") {
    // Of 3 panels of 32 columns.
    EXPECT_EQ(weight->bytes_of_few_rows(), std::size_t{3 * 32 * 192 * 3 / 2});
    EXPECT_EQ(weight->bytes(), weight->bytes_of_few_rows() + std::size_t{3 * 32 * 192 * 2});
  }
}

// More rows than a cache holds go in groups.
TEST_P(MatMulTest, ARowDoesNotDependOnRowsThatDoNotFitACache) {
  if (GetParam() == "cuda") {
    GTEST_SKIP() << "cuBLASLt chooses an algorithm by the number of rows";
  }
  Numbers numbers(37);
  SCOPED_TRACE(numbers.Describe());
  const Shape shape{301, 1536, 33};
  const std::vector<BFloat16> input = Inputs(numbers, shape);
  const std::vector<float> values = Weights(numbers, shape);
  const std::unique_ptr<PackedWeight> weight = Pack(backend(), shape.rows, shape.columns, values);
  const std::vector<float> together = Multiply(backend(), input, 0, shape.tokens, *weight);

  ExpectWithinRounding(together, input, values, shape);
  for (int first = 0; first < shape.tokens; first += 77) {
    const int count = std::min(77, shape.tokens - first);
    const std::vector<float> part = Multiply(backend(), input, first, count, *weight);
    ASSERT_EQ(
        std::memcmp(part.data(), together.data() + first * shape.rows, part.size() * sizeof(float)),
        0)
        << "rows " << first << " to " << first + count;
  }
}

TEST_P(MatMulTest, ARowDoesNotDependOnTheNumberOfThreads) {
  Numbers numbers(35);
  SCOPED_TRACE(numbers.Describe());
  // Many panels; few panels and many rows, which are cut as well; one panel.
  for (const Shape& shape : {Shape{19, 64, 333}, {131, 34, 90}, {60, 10, 7}}) {
    SCOPED_TRACE(testing::Message() << "T " << shape.tokens << " N " << shape.rows);
    const std::vector<BFloat16> input = Inputs(numbers, shape);
    const std::vector<float> values = Weights(numbers, shape);
    const std::unique_ptr<PackedWeight> weight = Pack(backend(), shape.rows, shape.columns, values);
    const std::vector<float> alone = Multiply(backend(), input, 0, shape.tokens, *weight);

    for (const int threads : {2, 3, 5}) {
      const std::unique_ptr<Backend> other = MakeBackend(threads);
      const std::unique_ptr<PackedWeight> other_weight =
          Pack(*other, shape.rows, shape.columns, values);
      for (int repeat = 0; repeat < 10; ++repeat) {
        ASSERT_EQ(Multiply(*other, input, 0, shape.tokens, *other_weight), alone)
            << threads << " threads";
      }
    }
  }
}

TEST_P(MatMulTest, CarriesNaNOn) {
  const Shape shape{2, 4, 3};
  Numbers numbers(36);
  std::vector<BFloat16> input = Inputs(numbers, shape);
  input[1] = ToBFloat16(std::nanf(""));
  const std::unique_ptr<PackedWeight> weight =
      Pack(backend(), shape.rows, shape.columns, Weights(numbers, shape));

  const std::vector<float> output = Multiply(backend(), input, 0, shape.tokens, *weight);

  for (std::size_t n = 0; n < 3; ++n) {
    EXPECT_TRUE(std::isnan(output[n]));
    EXPECT_TRUE(std::isfinite(output[3 + n]));
  }
}

INSTANTIATE_TEST_SUITE_P(On, MatMulTest, kEveryBackend, BackendTestName);

}  // namespace
}  // namespace baton
