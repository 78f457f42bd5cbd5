#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/ops.h"
#include "tests/reference/reference_ops.h"

namespace baton {

// Every suite of kernels runs once for each of these; one that the machine lacks is skipped,
// visibly.
inline const auto kEveryIsa = ::testing::Values("plain", "avx2", "avx512bf16", "amx");

std::string IsaTestName(const ::testing::TestParamInfo<std::string>& info);

// Seeded numbers; put seed() into failure messages with SCOPED_TRACE.
class Numbers {
 public:
  explicit Numbers(std::uint32_t seed) : seed_(seed), generator_(seed) {}

  std::string Describe() const { return "seed " + std::to_string(seed_); }

  float Normal() { return normal_(generator_); }
  int Below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(generator_); }
  std::vector<float> Normals(std::size_t count);
  std::vector<BFloat16> NormalBFloat16s(std::size_t count);
  std::mt19937& generator() { return generator_; }

 private:
  std::uint32_t seed_;
  std::mt19937 generator_;
  std::normal_distribution<float> normal_;
};

// A backend for the instruction set that is the test's parameter.
class KernelTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;

  std::unique_ptr<Backend> MakeBackend(int threads) const;
  Backend& backend() { return *backend_; }

  // A weight [rows, columns] with the given values, which are bf16 already.
  std::unique_ptr<PackedWeight> Pack(Backend& backend,
                                     int rows,
                                     int columns,
                                     const std::vector<float>& values);
  std::unique_ptr<RopeTable> MakeRope(Backend& backend, int head_dim, int positions);

 private:
  std::unique_ptr<Backend> backend_;
};

inline constexpr double kRopeBase = 10000;

// How far a result may be from the oracle. NaN or infinity anywhere fails, whatever the tolerance.
struct Tolerance {
  double relative = 0;  // of the expected element
  double absolute = 0;
  double nmse = 1;  // sum of squared errors over sum of squares
};

// bf16 has 8 significant bits: rounding to nearest is off by at most 2^-8 of the value, 2^-17 in
// the mean square. The rest is for the float arithmetic before it (a few hundred float roundings
// and an exponential good to 3e-7), which may also tip a tie.
inline constexpr Tolerance kRoundedOnce{
    .relative = 0x1p-8 * 1.01, .absolute = 1e-7, .nmse = 0x1p-16};

void ExpectClose(const std::vector<double>& actual,
                 const std::vector<double>& expected,
                 const Tolerance& tolerance);

std::vector<double> ToDoubles(const std::vector<float>& values);
std::vector<double> ToDoubles(const std::vector<BFloat16>& values);
std::vector<float> RoundedToBFloat16(std::vector<float> values);
reference::Row RowOf(const std::vector<float>& matrix, std::size_t row, std::size_t width);

}  // namespace baton
