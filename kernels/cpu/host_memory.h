#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace baton {

// Anonymous memory, on huge pages where the machine has them, touched once. RESOURCE_EXHAUSTED when
// there is none left.
absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHostMemory(std::size_t bytes);

// Memory in a file that other processes of this host can map; see AllocateSharedHostMemory.
class SharedHostMemory : public DeviceMemory {
 public:
  // Sealed against shrinking. Owned here; closed with the object.
  virtual int fd() const = 0;
  // Of the file and of its mapping at data(). What lies behind size_bytes(), at least 64 bytes, is
  // free for whoever shares the memory.
  virtual std::size_t file_bytes() const = 0;
};

// On huge pages where shared memory gets them (hugetlb with room, or transparent ones for shared
// memory), else on small ones; all there from the start. FAILED_PRECONDITION when the system has no
// memory files, RESOURCE_EXHAUSTED when there is no memory.
absl::StatusOr<std::unique_ptr<SharedHostMemory>> AllocateSharedHostMemory(std::size_t bytes);

// Hands out memory for weights from large mappings on huge pages: read from front to back, these
// come in 1.6 times as fast as small pages on a core of a virtual machine. A mapping goes with the
// last piece of it.
//
// Not thread-safe.
class HugePageArena {
 public:
  // Zeroed, aligned to a cache line, one after the other as they are asked for; nullptr when there
  // is no memory left.
  std::shared_ptr<std::byte> Allocate(std::size_t bytes);

 private:
  std::shared_ptr<DeviceMemory> mapping_;  // shared with the pieces: whoever goes last frees it
  std::size_t used_bytes_ = 0;
};

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
