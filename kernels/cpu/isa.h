#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu/kernel_table.h"

namespace baton {

// Kernels for `isa` (auto|amx|avx512bf16|avx2|plain). INVALID_ARGUMENT for another name,
// FAILED_PRECONDITION when the processor, or the architecture of the build, lacks it, or the
// operating system does not let this process use it.
absl::StatusOr<const KernelTable*> ChooseKernels(const std::string& isa);

}  // namespace baton
