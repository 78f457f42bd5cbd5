#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/ops.h"
#include "tests/kernels/oracle_comparison.h"

namespace baton {

// Every suite of kernels runs once for each of these; one that the machine lacks is skipped,
// visibly.
inline const auto kEveryIsa = ::testing::Values("plain", "avx2", "avx512bf16", "amx");

std::string IsaTestName(const ::testing::TestParamInfo<std::string>& info);

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

}  // namespace baton
