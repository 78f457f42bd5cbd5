#include "tests/kernels/kernel_test_support.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/rope.h"

namespace baton {

std::string IsaTestName(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

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

void KernelTest::SetUp() {
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      CreateCpuBackend({.isa = GetParam(), .threads = 1});
  if (absl::IsFailedPrecondition(backend.status())) {
    GTEST_SKIP() << std::string(backend.status().message());
  }
  ASSERT_TRUE(backend.ok()) << backend.status();
  backend_ = *std::move(backend);
  EXPECT_EQ(std::string(backend_->arithmetic()), "cpu-" + GetParam());
}

std::unique_ptr<Backend> KernelTest::MakeBackend(int threads) const {
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      CreateCpuBackend({.isa = GetParam(), .threads = threads});
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

std::unique_ptr<PackedWeight> KernelTest::Pack(Backend& backend,
                                               int rows,
                                               int columns,
                                               const std::vector<float>& values) {
  const auto width = static_cast<std::size_t>(columns);
  absl::StatusOr<std::unique_ptr<PackedWeight>> weight =
      backend.Pack(rows, columns, [&](int first, int, std::span<float> out) {
        std::copy_n(
            values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * width),
            out.size(), out.begin());
        return absl::OkStatus();
      });
  EXPECT_TRUE(weight.ok()) << weight.status();
  return *std::move(weight);
}

std::unique_ptr<RopeTable> KernelTest::MakeRope(Backend& backend, int head_dim, int positions) {
  absl::StatusOr<std::unique_ptr<RopeTable>> rope =
      backend.MakeRopeTable(RopeFrequencies(head_dim, kRopeBase), positions);
  EXPECT_TRUE(rope.ok()) << rope.status();
  return *std::move(rope);
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
