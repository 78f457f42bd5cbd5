#include "kernels/cpu/isa.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

// Linux lets a process use the tile registers, 8 KiB for each thread, only once it has asked; the
// answer holds for all its threads, those running included. The request is refused by kernels
// before 5.16, by some sandboxes, and where a thread has too small a stack for signals.
bool MayUseTiles() {
#if defined(__linux__)
  constexpr long kArchRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, absent from older headers
  constexpr long kTileData = 18;                   // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kArchRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool HasAmx() {
  return HasAvx512Bf16() && __builtin_cpu_supports("amx-tile") != 0 &&
         __builtin_cpu_supports("amx-bf16") != 0 && MayUseTiles();
}

const KernelTable* Avx2OrNull() {
  return HasAvx2() ? &Avx2Kernels() : nullptr;
}
const KernelTable* Avx512Bf16OrNull() {
  return HasAvx512Bf16() ? &Avx512Bf16Kernels() : nullptr;
}
const KernelTable* AmxOrNull() {
  return HasAmx() ? &AmxKernels() : nullptr;
}
#else
const KernelTable* Avx2OrNull() {
  return nullptr;
}
const KernelTable* Avx512Bf16OrNull() {
  return nullptr;
}
const KernelTable* AmxOrNull() {
  return nullptr;
}
#endif

struct Isa {
  const char* name;
  const KernelTable* (*kernels_or_null)();
};

// Best first.
constexpr Isa kIsas[] = {
    {"amx", AmxOrNull},
    {"avx512bf16", Avx512Bf16OrNull},
    {"avx2", Avx2OrNull},
    {"plain", [] { return &PlainKernels(); }},
};

}  // namespace

absl::StatusOr<const KernelTable*> ChooseKernels(const std::string& isa) {
  for (const Isa& candidate : kIsas) {
    if (isa != "auto" && isa != candidate.name) {
      continue;
    }
    if (const KernelTable* kernels = candidate.kernels_or_null(); kernels != nullptr) {
      return kernels;
    }
    if (isa != "auto") {
      return absl::FailedPreconditionError(absl::StrCat("cpu isa: this processor does not have ",
                                                        isa, ", or the system does not grant it"));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cpu isa: '", isa, "' is not auto, amx, avx512bf16, avx2 or plain"));
}

}  // namespace baton
