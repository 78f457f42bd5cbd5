#include "tests/kernels/kernel_test_support.h"

#include <algorithm>
#include <span>

#include "kernels/rope.h"

namespace baton {
namespace {

BackendOptions OptionsFor(const std::string& parameter, int threads) {
  if (parameter == "emulated" || parameter == "cuda") {
    return {.device = parameter};
  }
  return {.device = "cpu", .cpu = {.isa = parameter, .threads = threads}};
}

}  // namespace

std::string BackendTestName(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

void KernelTest::SetUp() {
  absl::StatusOr<ChosenBackend> chosen = CreateBackend(OptionsFor(GetParam(), /*threads=*/1));
  if (absl::IsFailedPrecondition(chosen.status())) {
    GTEST_SKIP() << std::string(chosen.status().message());
  }
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  backend_ = std::move(chosen->backend);
  const std::string arithmetic(backend_->arithmetic());
  if (GetParam() == "cuda") {
    EXPECT_EQ(arithmetic.substr(0, 7), "cuda-sm");
  } else {
    EXPECT_EQ(arithmetic, (IsEmulated() ? "cuda-" : "cpu-") + GetParam());
  }
}

std::unique_ptr<Backend> KernelTest::MakeBackend(int threads) const {
  absl::StatusOr<ChosenBackend> chosen = CreateBackend(OptionsFor(GetParam(), threads));
  EXPECT_TRUE(chosen.ok()) << chosen.status();
  return std::move(chosen->backend);
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
