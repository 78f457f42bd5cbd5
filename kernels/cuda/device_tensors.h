#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/upload_ring.h"
#include "kernels/ops.h"

// What a CUDA backend gives out, in device memory. Each must go before its device.
namespace baton::cuda {

class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(DeviceBuffer<std::byte> memory) : memory_(std::move(memory)) {}
  std::byte* data() const override { return memory_.data(); }
  std::size_t size_bytes() const override { return memory_.size_bytes(); }

 private:
  DeviceBuffer<std::byte> memory_;
};

// bf16, row-major, rows next to each other: what cuBLASLt multiplies with and what embeddings are
// read from.
class CudaPackedWeight final : public PackedWeight {
 public:
  static absl::StatusOr<std::unique_ptr<CudaPackedWeight>> Create(
      Device& device, UploadRing& ring, int rows, int columns, const RowReader& reader);

  int rows() const override { return rows_; }
  int columns() const override { return columns_; }
  std::size_t bytes() const override { return memory_.size_bytes(); }
  const BFloat16* data() const { return memory_.data(); }

 private:
  CudaPackedWeight(DeviceBuffer<BFloat16> memory, int rows, int columns)
      : memory_(std::move(memory)), rows_(rows), columns_(columns) {}

  DeviceBuffer<BFloat16> memory_;  // [N, K]
  int rows_;
  int columns_;
};

// Cosine and sine of each rotation by a position, [positions, D/2, 2].
class CudaRopeTable final : public RopeTable {
 public:
  static absl::StatusOr<std::unique_ptr<CudaRopeTable>> Create(Device& device,
                                                               UploadRing& ring,
                                                               std::span<const double> frequencies,
                                                               int positions);

  int head_dim() const override { return head_dim_; }
  int positions() const override { return positions_; }
  const float* data() const { return memory_.data(); }

 private:
  CudaRopeTable(DeviceBuffer<float> memory, int head_dim, int positions)
      : memory_(std::move(memory)), head_dim_(head_dim), positions_(positions) {}

  DeviceBuffer<float> memory_;
  int head_dim_;
  int positions_;
};

}  // namespace baton::cuda
