#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "kernels/operation_times.h"
#include "kernels/ops.h"

namespace baton {

// Forwards to another backend and adds up the time of every operation: two readings of the clock a
// call, so that it can always be on. Weights, tables and memory are the inner backend's own.
//
// On a backend that computes asynchronously the time of an operation is that of asking for it; the
// rest shows in Synchronize and SelectTokens.
//
// Not thread-safe, like every Backend, but for operations_begun.
class ProfiledBackend final : public Backend {
 public:
  // Borrows both, which must outlive it. `keeps_calls`: for a trace, every single call as well.
  ProfiledBackend(Backend& inner, bool keeps_calls, const Clock& clock = Clock::System())
      : inner_(inner), keeps_calls_(keeps_calls), clock_(clock) {}

  // Since construction or the last Reset.
  const OperationTimes& times() const { return times_; }
  // The same calls one by one, oldest first; empty unless they are kept. Until the next operation
  // or Reset.
  std::span<const OperationCall> calls() const { return calls_; }
  void Reset();
  // Of all since construction; not set back. Thread-safe.
  std::uint64_t operations_begun() const { return begun_.load(std::memory_order_relaxed); }

  std::string_view name() const override { return inner_.name(); }
  std::string_view arithmetic() const override { return inner_.arithmetic(); }
  KvLayout LayoutFor(int layers, int kv_heads, int head_dim) const override {
    return inner_.LayoutFor(layers, kv_heads, head_dim);
  }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(std::size_t bytes) override {
    return inner_.Allocate(bytes);
  }
  absl::StatusOr<MemoryBudget> Memory() override { return inner_.Memory(); }
  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(int rows,
                                                     int columns,
                                                     const RowReader& reader) override {
    return inner_.Pack(rows, columns, reader);
  }
  absl::StatusOr<std::unique_ptr<RopeTable>> MakeRopeTable(std::span<const double> frequencies,
                                                           int positions) override {
    return inner_.MakeRopeTable(frequencies, positions);
  }
  absl::StatusOr<StepProgram> PrepareSteps(const StepLimits& limits) override {
    return inner_.PrepareSteps(limits);
  }
  int PaddedRows(const StepInputs& inputs) override { return inner_.PaddedRows(inputs); }
  // The operations of a repeated step are not asked for one by one, so they have no times of their
  // own.
  absl::Status RunStep(const StepInputs& inputs,
                       absl::FunctionRef<absl::Status()> operations) override {
    return inner_.RunStep(inputs, operations);
  }

  absl::Status EmbedTokens(const EmbedTokensArgs& args) override;
  absl::Status RmsNorm(const RmsNormArgs& args) override;
  absl::Status MatMul(const MatMulArgs& args) override;
  absl::Status GatedMatMul(const GatedMatMulArgs& args) override;
  absl::Status RotateAndWriteKv(const RotateAndWriteKvArgs& args) override;
  absl::Status PagedAttention(const PagedAttentionArgs& args) override;
  absl::Status SelectTokens(const SelectTokensArgs& args) override;
  absl::Status Copy(const CopyArgs& args) override;
  absl::Status Synchronize() override;

 private:
  // Runs `compute` and takes its time as that of `call`, whose start and duration it sets.
  template <typename Compute>
  absl::Status Measure(OperationCall call, const Compute& compute);

  Backend& inner_;
  const bool keeps_calls_;
  const Clock& clock_;
  std::atomic<std::uint64_t> begun_{0};  // a counter, nothing is published by it
  OperationTimes times_;
  std::vector<OperationCall> calls_;
};

}  // namespace baton
