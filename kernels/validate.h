#pragma once

#include <span>

#include "absl/status/status.h"
#include "kernels/ops.h"

namespace baton {

// Shape checks, run first by every backend, so that a wrong argument gives the same status
// everywhere: INVALID_ARGUMENT "mat_mul: output is [4, 32], needs [4, 64]".
//
// They look at extents, pointers for null, and host memory; never at what a TensorView points to.
absl::Status Validate(const EmbedTokensArgs& args);
absl::Status Validate(const RmsNormArgs& args);
absl::Status Validate(const MatMulArgs& args);
absl::Status Validate(const RotateAndWriteKvArgs& args);
absl::Status Validate(const PagedAttentionArgs& args);
absl::Status Validate(const GatedMatMulArgs& args);
absl::Status Validate(const SelectTokensArgs& args);
absl::Status Validate(const CopyArgs& args);
absl::Status Validate(const StepLimits& limits);
absl::Status Validate(const StepInputs& inputs);  // lengths and order
// Values too, for steps whose operations are not asked one by one. REQUIRES: Validate(inputs).
absl::Status ValidateValues(const StepInputs& inputs, const StepLimits& limits);

absl::Status ValidateWeightShape(int rows, int columns);
absl::Status ValidateRope(std::span<const double> frequencies, int positions);

}  // namespace baton
