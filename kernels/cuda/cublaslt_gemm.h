#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm.h"

namespace baton::cuda {

// Products by cuBLASLt, which is looked for when this is called: a program starts without it.
// FAILED_PRECONDITION where it is absent or of another major version than this build's headers.
//
// An algorithm is chosen by the library's heuristic once for each weight's shape, with rows rounded
// up to a power of two, and kept. Algorithms whose sums depend on which block comes first are not
// asked for: the same product gives the same bits every time.
absl::StatusOr<std::unique_ptr<Gemm>> CreateCublasLtGemm(Device& device);

}  // namespace baton::cuda
