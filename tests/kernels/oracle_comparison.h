#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/bfloat16.h"
#include "kernels/half.h"
#include "tests/reference/reference_ops.h"

// Seeded inputs, and how results are compared with those of the oracles. Knows no backend and needs
// no Abseil, so that tests of single CUDA kernels can use it on a machine that has only a compiler.
namespace baton {

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

// fp16 has 11 significant bits. Below 2^-14 its steps are 2^-24 whatever the value: half of that is
// absolute.
inline constexpr Tolerance kRoundedOnceToHalf{
    .relative = 0x1p-11 * 1.01, .absolute = 1e-7, .nmse = 0x1p-22};

void ExpectClose(const std::vector<double>& actual,
                 const std::vector<double>& expected,
                 const Tolerance& tolerance);

std::vector<double> ToDoubles(const std::vector<float>& values);
std::vector<double> ToDoubles(const std::vector<BFloat16>& values);
std::vector<double> ToDoubles(const std::vector<Half>& values);
std::vector<float> RoundedToBFloat16(std::vector<float> values);
reference::Row RowOf(const std::vector<float>& matrix, std::size_t row, std::size_t width);

}  // namespace baton
