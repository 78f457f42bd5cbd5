#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"

namespace baton {

// The first GPU that the process may see (CUDA_VISIBLE_DEVICES). FAILED_PRECONDITION with the
// reason where there is none, the driver is absent or too old, or this build was made without nvcc.
absl::StatusOr<std::unique_ptr<cuda::Device>> OpenGpu();

// The emulation of one on this processor (tests/emulation). FAILED_PRECONDITION where this build
// was made without it.
absl::StatusOr<std::unique_ptr<cuda::Device>> OpenEmulatedGpu();

}  // namespace baton
