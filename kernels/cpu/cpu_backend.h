#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace baton {

struct CpuOptions {
  // auto|amx|avx512bf16|avx2|plain; auto takes the fastest that processor and system offer
  std::string isa = "auto";
  int threads = 1;  // [1, 256], the calling thread included
};

// INVALID_ARGUMENT for a name that is none of these or a bad number of threads; FAILED_PRECONDITION
// for an instruction set that this processor lacks or the system does not grant.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuOptions& options);

}  // namespace baton
