#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace baton::cuda {

// A backend that computes on `device`: with the kernels of its table and its matrix products.
// Weights and KV in bf16; attention for head dimensions 64 and 128.
//
// Operations are put on one stream and return at once; SelectTokens, Synchronize and copies to the
// host wait. Steps that may be repeated are captured the second time they come, and then replayed:
// one copy and one launch a step.
//
// FAILED_PRECONDITION where the library for matrix products is absent, RESOURCE_EXHAUSTED where
// there is no memory for staging.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::unique_ptr<Device> device);

}  // namespace baton::cuda
