#include "tests/kernels/oracle_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace baton {

std::vector<float> Numbers::Normals(std::size_t count) {
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(), [this] { return Normal(); });
  return values;
}

std::vector<BFloat16> Numbers::NormalBFloat16s(std::size_t count) {
  std::vector<BFloat16> values(count);
  std::generate(values.begin(), values.end(), [this] { return ToBFloat16(Normal()); });
  return values;
}

void ExpectClose(const std::vector<double>& actual,
                 const std::vector<double>& expected,
                 const Tolerance& tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  double squared_error = 0;
  double squared = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(std::isfinite(actual[i])) << "element " << i;
    const double error = std::abs(actual[i] - expected[i]);
    ASSERT_LE(error, tolerance.relative * std::abs(expected[i]) + tolerance.absolute)
        << "element " << i << ": " << actual[i] << ", expected " << expected[i];
    squared_error += error * error;
    squared += expected[i] * expected[i];
  }
  EXPECT_LE(squared_error, tolerance.nmse * squared)
      << "normalised mean square error " << squared_error / squared;
}

std::vector<double> ToDoubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

std::vector<double> ToDoubles(const std::vector<BFloat16>& values) {
  std::vector<double> doubles;
  for (const BFloat16 value : values) {
    doubles.push_back(static_cast<double>(ToFloat(value)));
  }
  return doubles;
}

std::vector<double> ToDoubles(const std::vector<Half>& values) {
  std::vector<double> doubles;
  for (const Half value : values) {
    doubles.push_back(static_cast<double>(ToFloat(value)));
  }
  return doubles;
}

std::vector<float> RoundedToBFloat16(std::vector<float> values) {
  for (float& value : values) {
    value = ToFloat(ToBFloat16(value));
  }
  return values;
}

reference::Row RowOf(const std::vector<float>& matrix, std::size_t row, std::size_t width) {
  const auto first = matrix.begin() + static_cast<std::ptrdiff_t>(row * width);
  return {first, first + static_cast<std::ptrdiff_t>(width)};
}

}  // namespace baton
