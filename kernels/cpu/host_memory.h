#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace baton {

// Anonymous memory, on huge pages where the machine has them, touched once. RESOURCE_EXHAUSTED when
// there is none left.
absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHostMemory(std::size_t bytes);

// Uninitialised memory aligned to a cache line, freed with the object; nullptr inside when there is
// none left.
struct FreeDeleter {
  void operator()(void* p) const;
};
template <typename T>
using AlignedArray = std::unique_ptr<T[], FreeDeleter>;

void* AllocateAligned(std::size_t bytes);

template <typename T>
AlignedArray<T> MakeAlignedArray(std::size_t count) {
  return AlignedArray<T>(static_cast<T*>(AllocateAligned(count * sizeof(T))));
}

}  // namespace baton
