#include "tests/kernels/kernel_test_support.h"

#include <algorithm>
#include <span>

#include "kernels/rope.h"

namespace baton {

std::string IsaTestName(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
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

}  // namespace baton
