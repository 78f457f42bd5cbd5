#include "kernels/profiled_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/support/fake_clock.h"

namespace baton {
namespace {

using std::chrono::microseconds;

class FakeWeight final : public PackedWeight {
 public:
  int rows() const override { return 48; }
  int columns() const override { return 32; }
  std::size_t bytes() const override { return 0; }
};

// Every operation takes a time of its own and says that it was here. Makes nothing.
class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(FakeClock& clock) : clock_(clock) {}

  std::string_view name() const override { return "fake"; }
  std::string_view arithmetic() const override { return "fake-arithmetic"; }
  KvLayout LayoutFor(int layers, int /*kv_heads*/, int /*head_dim*/) const override {
    return {.layers = layers};
  }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(std::size_t) override {
    return absl::ResourceExhaustedError("allocate");
  }
  absl::StatusOr<MemoryBudget> Memory() override { return absl::ResourceExhaustedError("memory"); }
  absl::StatusOr<StepProgram> PrepareSteps(const StepLimits& limits) override {
    return StepProgram(static_cast<std::uint32_t>(limits.rows));
  }
  int PaddedRows(const StepInputs& inputs) override {
    return static_cast<int>(inputs.tokens.size()) + 3;
  }
  absl::Status RunStep(const StepInputs& inputs,
                       absl::FunctionRef<absl::Status()> operations) override {
    return inputs.repeatable ? absl::OkStatus() : operations();
  }
  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(int, int, const RowReader&) override {
    auto weight = std::make_unique<FakeWeight>();
    packed = weight.get();
    return weight;
  }
  absl::StatusOr<std::unique_ptr<RopeTable>> MakeRopeTable(std::span<const double>, int) override {
    return absl::InvalidArgumentError("rope table");
  }

  absl::Status EmbedTokens(const EmbedTokensArgs&) override { return Take(1, "embed"); }
  absl::Status RmsNorm(const RmsNormArgs&) override { return Take(2, "norm"); }
  absl::Status MatMul(const MatMulArgs&) override { return Take(3, "mat_mul"); }
  absl::Status GatedMatMul(const GatedMatMulArgs&) override { return Take(4, "gated_mat_mul"); }
  absl::Status RotateAndWriteKv(const RotateAndWriteKvArgs&) override { return Take(5, "rotate"); }
  absl::Status PagedAttention(const PagedAttentionArgs&) override { return Take(6, "attention"); }
  absl::Status SelectTokens(const SelectTokensArgs&) override { return Take(7, "select"); }
  absl::Status Copy(const CopyArgs&) override { return Take(8, "copy"); }
  absl::Status Synchronize() override { return Take(9, "synchronize"); }

  const PackedWeight* packed = nullptr;

 private:
  absl::Status Take(int time_us, const char* what) {
    clock_.Advance(microseconds(time_us));
    return absl::AbortedError(what);
  }

  FakeClock& clock_;
};

// Each operation once, in the order of Operation.
std::vector<absl::Status> CallEach(Backend& backend) {
  return {backend.EmbedTokens({}),      backend.RmsNorm({}),
          backend.MatMul({}),           backend.GatedMatMul({}),
          backend.RotateAndWriteKv({}), backend.PagedAttention({}),
          backend.SelectTokens({}),     backend.Copy({}),
          backend.Synchronize()};
}

class ProfiledBackendTest : public testing::Test {
 protected:
  FakeClock clock_;
  FakeBackend fake_{clock_};
};

TEST_F(ProfiledBackendTest, AnswersAreThoseOfTheInnerBackend) {
  ProfiledBackend profiled(fake_, /*keeps_calls=*/false, clock_);

  EXPECT_EQ(CallEach(profiled), CallEach(fake_));
  EXPECT_EQ(profiled.name(), fake_.name());
  EXPECT_EQ(profiled.arithmetic(), fake_.arithmetic());
  EXPECT_EQ(profiled.LayoutFor(7, 1, 16).layers, 7);
  EXPECT_EQ(profiled.Allocate(1).status(), fake_.Allocate(1).status());
  EXPECT_EQ(profiled.MakeRopeTable({}, 1).status(), fake_.MakeRopeTable({}, 1).status());
  EXPECT_EQ(profiled.Memory().status(), fake_.Memory().status());
  EXPECT_EQ(*profiled.PrepareSteps({.rows = 5}), StepProgram(5));
  EXPECT_EQ(profiled.PaddedRows({}), 3);
  const auto abort = [] { return absl::AbortedError("an operation"); };
  EXPECT_EQ(profiled.RunStep({}, abort), abort());
  EXPECT_TRUE(profiled.RunStep({.repeatable = true}, abort).ok());
  const auto weight = profiled.Pack(48, 32, nullptr);
  ASSERT_TRUE(weight.ok());
  EXPECT_EQ(weight->get(), fake_.packed);
}

TEST_F(ProfiledBackendTest, AddsUpTimesAndCallsByOperation) {
  ProfiledBackend profiled(fake_, /*keeps_calls=*/false, clock_);
  CallEach(profiled);
  CallEach(profiled);

  for (std::size_t i = 0; i < kOperationNames.size(); ++i) {
    const OperationTimes::Sum& sum = profiled.times().sums()[i];
    EXPECT_EQ(sum.calls, 2) << kOperationNames[i];
    EXPECT_EQ(sum.time, microseconds(2 * (i + 1))) << kOperationNames[i];
  }
  EXPECT_EQ(profiled.times()[Operation::kMatMul].time, microseconds(6));
  EXPECT_EQ(profiled.times().total(), microseconds(2 * 45));
  EXPECT_TRUE(profiled.calls().empty());

  profiled.Reset();
  EXPECT_EQ(profiled.times().total(), Duration::zero());
}

TEST_F(ProfiledBackendTest, KeepsTheSingleCallsInOrder) {
  ProfiledBackend profiled(fake_, /*keeps_calls=*/true, clock_);
  const TimePoint begin = clock_.Now();
  CallEach(profiled);

  ASSERT_EQ(profiled.calls().size(), kOperationNames.size());
  TimePoint expected_start = begin;
  for (std::size_t i = 0; i < profiled.calls().size(); ++i) {
    const OperationCall& call = profiled.calls()[i];
    EXPECT_EQ(OperationName(call.operation), kOperationNames[i]);
    EXPECT_EQ(call.start, expected_start);
    EXPECT_EQ(call.duration, microseconds(i + 1));
    expected_start += call.duration;
  }

  profiled.Reset();
  EXPECT_TRUE(profiled.calls().empty());
}

TEST_F(ProfiledBackendTest, ACallCarriesItsShape) {
  ProfiledBackend profiled(fake_, /*keeps_calls=*/true, clock_);
  const FakeWeight weight;
  std::vector<BFloat16> input(3 * 32);
  profiled.MatMul({.input = {input.data(), 3, 32}, .weight = &weight}).IgnoreError();

  ASSERT_EQ(profiled.calls().size(), 1u);
  EXPECT_EQ(profiled.calls()[0].rows, 3);
  EXPECT_EQ(profiled.calls()[0].weight_rows, 48);
  EXPECT_EQ(profiled.calls()[0].weight_columns, 32);
}

// A weight packed through the wrapper is the inner backend's own, which takes no other.
TEST(ProfiledCpuBackend, ComputesWithWeightsPackedThroughIt) {
  const auto cpu = CreateCpuBackend({});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  ProfiledBackend profiled(**cpu, /*keeps_calls=*/false);
  const auto twos = [](int, int, std::span<float> out) {
    std::fill(out.begin(), out.end(), 2.0f);
    return absl::OkStatus();
  };
  const auto weight = profiled.Pack(16, 32, twos);
  ASSERT_TRUE(weight.ok()) << weight.status();
  const auto input = profiled.Allocate(32 * sizeof(BFloat16));
  const auto output = profiled.Allocate(16 * sizeof(float));
  ASSERT_TRUE(input.ok() && output.ok());
  const TensorView<BFloat16> ones(reinterpret_cast<BFloat16*>((*input)->data()), 1, 32);
  std::fill(ones.Row(0), ones.Row(0) + 32, ToBFloat16(1.0f));
  const TensorView<float> sums(reinterpret_cast<float*>((*output)->data()), 1, 16);

  const absl::Status status =
      profiled.MatMul({.input = ones, .weight = weight->get(), .output = sums});

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(sums(0, 0), 64.0f);
  EXPECT_EQ(sums(0, 15), 64.0f);
  EXPECT_EQ(profiled.times()[Operation::kMatMul].calls, 1);
}

}  // namespace
}  // namespace baton
