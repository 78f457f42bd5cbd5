#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::mapped {

// The file behind a pool, as its owner has it. Borrowed; outlives what uses it.
struct PoolFile {
  int fd = -1;  // a memfd sealed against shrinking, so that a reader's mapping never loses pages
  std::byte* base = nullptr;  // its mapping; the pool is at the start
  std::size_t pool_bytes = 0;
  std::size_t file_bytes = 0;  // at least kCookieBytes more than the pool
};

// The last bytes of the file: a random value by which a reader knows that it has the right one.
inline constexpr std::size_t kCookieBytes = 16;

// Writes a new cookie into the file and returns what a peer needs to map it.
std::string MakeDoor(const PoolFile& file);

// A peer's pool, mapped for reading. Move-only. Not thread-safe.
class MappedPool {
 public:
  // Opens the file that `door` names through /proc and maps it. FAILED_PRECONDITION with the reason
  // when the two processes are on different hosts or in different pid namespaces, when the file may
  // not be opened, or is not the file of `pool_bytes` that its owner would have made.
  static absl::StatusOr<MappedPool> Open(std::string_view door, std::uint64_t pool_bytes);

  ~MappedPool();
  MappedPool(MappedPool&& other) noexcept;
  MappedPool& operator=(MappedPool&& other) noexcept;

  const std::byte* base() const { return base_; }
  std::size_t pool_bytes() const { return pool_bytes_; }

  // Enters the next few pages of the pool into this process's page table, which else costs the
  // first copy of each; false when all are there. Takes half a millisecond.
  bool PopulateMore();

 private:
  MappedPool(std::byte* base, std::size_t mapping_bytes, std::size_t pool_bytes)
      : base_(base), mapping_bytes_(mapping_bytes), pool_bytes_(pool_bytes) {}

  std::byte* base_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  std::size_t pool_bytes_ = 0;
  std::size_t populated_bytes_ = 0;
};

}  // namespace baton::mapped
