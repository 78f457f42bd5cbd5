#include "kernels/cpu/isa.h"

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// Asks the processor and the operating system, which has to save the wide registers.
#if defined(__x86_64__)
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

bool HasAvx512Bf16() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
}

const KernelTable* Avx2OrNull() {
  return HasAvx2() ? &Avx2Kernels() : nullptr;
}
const KernelTable* Avx512Bf16OrNull() {
  return HasAvx512Bf16() ? &Avx512Bf16Kernels() : nullptr;
}
#else
const KernelTable* Avx2OrNull() {
  return nullptr;
}
const KernelTable* Avx512Bf16OrNull() {
  return nullptr;
}
#endif

absl::StatusOr<const KernelTable*> OrLacking(const KernelTable* kernels, const std::string& isa) {
  if (kernels == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cpu isa: this processor does not have ", isa));
  }
  return kernels;
}

}  // namespace

absl::StatusOr<const KernelTable*> ChooseKernels(const std::string& isa) {
  if (isa == "avx512bf16") {
    return OrLacking(Avx512Bf16OrNull(), isa);
  }
  if (isa == "avx2") {
    return OrLacking(Avx2OrNull(), isa);
  }
  if (isa == "plain") {
    return &PlainKernels();
  }
  if (isa != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("cpu isa: '", isa, "' is not auto, avx512bf16, avx2 or plain"));
  }
  if (const KernelTable* kernels = Avx512Bf16OrNull(); kernels != nullptr) {
    return kernels;
  }
  if (const KernelTable* kernels = Avx2OrNull(); kernels != nullptr) {
    return kernels;
  }
  return &PlainKernels();
}

}  // namespace baton
