#include "tests/emulation/host_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/bfloat16.h"
#include "kernels/half.h"

namespace baton::emulated {
namespace {

struct Shape {
  int rows;     // T
  int columns;  // N
  int inner;    // K
};

template <typename T>
T Round(float value);
template <>
BFloat16 Round<BFloat16>(float value) {
  return ToBFloat16(value);
}
template <>
Half Round<Half>(float value) {
  return ToHalf(value);
}

// The bound of any order of float sums: K roundings of 2^-24 of the sum of absolute values, one
// more for the accumulation.
template <typename T>
void ExpectWithinRounding(const Shape& shape, bool accumulate, cuda::Element element) {
  constexpr std::uint32_t kSeed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed << " T " << shape.rows << " N "
                                  << shape.columns << " K " << shape.inner);
  std::mt19937 generator(kSeed);
  std::normal_distribution<float> normal;
  const int input_stride = shape.inner + 3;
  const int output_stride = shape.columns + 2;
  std::vector<T> input(static_cast<std::size_t>(shape.rows * input_stride));
  std::vector<T> weight(static_cast<std::size_t>(shape.columns * shape.inner));
  std::vector<float> output(static_cast<std::size_t>(shape.rows * output_stride));
  for (T& value : input) {
    value = Round<T>(normal(generator));
  }
  for (T& value : weight) {
    value = Round<T>(normal(generator));
  }
  for (float& value : output) {
    value = normal(generator);
  }
  const std::vector<float> before = output;
  HostGemm gemm;

  ASSERT_TRUE(gemm.Run({.input = input.data(),
                        .input_stride = input_stride,
                        .weight = weight.data(),
                        .element = element,
                        .output = output.data(),
                        .output_stride = output_stride,
                        .rows = shape.rows,
                        .columns = shape.columns,
                        .inner = shape.inner,
                        .accumulate = accumulate},
                       cuda::StreamHandle{})
                  .ok());

  for (int t = 0; t < shape.rows; ++t) {
    for (int n = 0; n < output_stride; ++n) {
      const auto at = static_cast<std::size_t>(t * output_stride + n);
      if (n >= shape.columns) {
        ASSERT_EQ(output[at], before[at]) << "between rows";
        continue;
      }
      double sum = accumulate ? static_cast<double>(before[at]) : 0;
      double magnitude = std::abs(sum);
      for (int k = 0; k < shape.inner; ++k) {
        const double product =
            static_cast<double>(ToFloat(input[static_cast<std::size_t>(t * input_stride + k)])) *
            static_cast<double>(ToFloat(weight[static_cast<std::size_t>(n * shape.inner + k)]));
        sum += product;
        magnitude += std::abs(product);
      }
      ASSERT_LE(std::abs(static_cast<double>(output[at]) - sum),
                (shape.inner + 1) * 0x1p-24 * magnitude)
          << t << " " << n;
    }
  }
}

TEST(HostGemm, AgreesWithDoublesWithinFloatRounding) {
  for (const Shape& shape : {Shape{1, 1, 1},
                             {1, 16, 15},
                             {2, 15, 16},
                             {3, 17, 17},
                             {5, 31, 64},
                             {16, 3, 97},
                             {17, 64, 576}}) {
    for (const bool accumulate : {false, true}) {
      ExpectWithinRounding<BFloat16>(shape, accumulate, cuda::Element::kBFloat16);
      ExpectWithinRounding<Half>(shape, accumulate, cuda::Element::kHalf);
    }
  }
}

TEST(HostGemm, RefusesAShapeThatIsNone) {
  HostGemm gemm;
  EXPECT_TRUE(absl::IsInvalidArgument(gemm.Prepare({.rows = 1, .columns = 0, .inner = 4})));
}

// Logs must never show it as the real library.
TEST(HostGemm, IsLabelledAsAStandIn) {
  EXPECT_EQ(std::string(HostGemm().name()), "host-stand-in-for-cublaslt");
}

}  // namespace
}  // namespace baton::emulated
