#pragma once

#include "absl/status/statusor.h"
#include "bench/work_model.h"
#include "kernels/cuda/device.h"

namespace baton {

struct CeilingSizes {
  std::size_t copy_bytes = std::size_t{2} << 30;  // far beyond any cache
  int gemm_side = 8192;
  int rounds = 5;  // the quickest counts
};

// What this device can do right now, by its own means: bytes read and written a second of a copy
// inside device memory, and floating-point operations a second of a square bf16 matrix product.
absl::StatusOr<Limits> MeasureCeilings(cuda::Device& device, const CeilingSizes& sizes);

}  // namespace baton
