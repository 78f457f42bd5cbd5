#include "kernels/cpu/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kCacheLineBytes = 64;
// Of one mapping of an arena. Pages that nobody touches cost nothing.
constexpr std::size_t kArenaBytes = std::size_t{64} << 20;

constexpr std::size_t RoundUp(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Owns one anonymous mapping; what it shows starts at a huge page's boundary inside it.
class MappedMemory final : public DeviceMemory {
 public:
  MappedMemory(void* mapping, std::size_t mapping_bytes, std::size_t bytes)
      : mapping_(mapping), mapping_bytes_(mapping_bytes), bytes_(bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(mapping);
    data_ = static_cast<std::byte*>(mapping) + (RoundUp(address, kHugePageBytes) - address);
  }
  ~MappedMemory() override { munmap(mapping_, mapping_bytes_); }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::byte* data() const override { return data_; }
  std::size_t size_bytes() const override { return bytes_; }

 private:
  void* mapping_;
  std::size_t mapping_bytes_;
  std::size_t bytes_;
  std::byte* data_;
};

// Zero, not yet backed by memory.
absl::StatusOr<std::unique_ptr<DeviceMemory>> MapMemory(std::size_t bytes) {
  if (bytes == 0 || bytes > std::numeric_limits<std::ptrdiff_t>::max() - kHugePageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("allocate ", bytes, " bytes"));
  }
  const std::size_t mapping_bytes = bytes + kHugePageBytes;
  void* mapping =
      mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("allocate ", bytes, " bytes: ", std::strerror(errno)));
  }
  auto memory = std::make_unique<MappedMemory>(mapping, mapping_bytes, bytes);
  // Advice only: without huge pages everything works, a little slower.
  madvise(memory->data(), bytes, MADV_HUGEPAGE);
  return memory;
}

// Makes all pages of a writable mapping present. Writing to a page that there is no memory for
// would end the process; this says so instead, where the system can.
absl::Status Populate(std::byte* data, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  constexpr int kPopulate = MADV_POPULATE_WRITE;
#else
  constexpr int kPopulate = 23;  // since Linux 5.14
#endif
  if (madvise(data, bytes, kPopulate) == 0) {
    return absl::OkStatus();
  }
  if (errno != EINVAL) {
    return absl::ResourceExhaustedError(
        absl::StrCat("allocate ", bytes, " bytes: ", std::strerror(errno)));
  }
  std::memset(data, 0, bytes);
  return absl::OkStatus();
}

class MemoryFile final : public SharedHostMemory {
 public:
  MemoryFile(int fd, void* mapping, std::size_t file_bytes, std::size_t bytes)
      : fd_(fd), data_(static_cast<std::byte*>(mapping)), file_bytes_(file_bytes), bytes_(bytes) {}
  ~MemoryFile() override {
    munmap(data_, file_bytes_);
    close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::byte* data() const override { return data_; }
  std::size_t size_bytes() const override { return bytes_; }
  int fd() const override { return fd_; }
  std::size_t file_bytes() const override { return file_bytes_; }

 private:
  const int fd_;
  std::byte* const data_;
  const std::size_t file_bytes_;
  const std::size_t bytes_;
};

// `flags` beside those every memory file here has.
absl::StatusOr<std::unique_ptr<SharedHostMemory>> MakeMemoryFile(std::size_t bytes,
                                                                 unsigned flags) {
  const std::size_t file_bytes = RoundUp(bytes + kCacheLineBytes, kHugePageBytes);
  const int fd = memfd_create("baton-kv-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (fd < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("make a memory file: ", std::strerror(errno)));
  }
  void* mapping = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(file_bytes)) == 0 &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    mapping = mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (mapping == MAP_FAILED) {
    const int error = errno;
    close(fd);
    return absl::ResourceExhaustedError(
        absl::StrCat("memory file of ", file_bytes, " bytes: ", std::strerror(error)));
  }
  return std::make_unique<MemoryFile>(fd, mapping, file_bytes, bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedHostMemory>> AllocateSharedHostMemory(std::size_t bytes) {
  if (bytes == 0 ||
      bytes > std::numeric_limits<std::ptrdiff_t>::max() - kHugePageBytes - kCacheLineBytes) {
    return absl::InvalidArgumentError(absl::StrCat("allocate ", bytes, " bytes"));
  }
  // hugetlb pages are reserved by mmap, which fails when there are too few.
  absl::StatusOr<std::unique_ptr<SharedHostMemory>> memory = MakeMemoryFile(bytes, MFD_HUGETLB);
  if (!memory.ok()) {
    memory = MakeMemoryFile(bytes, 0);
  }
  if (memory.ok()) {
    // Advice only, and taken only where shared memory may have huge pages.
    madvise((*memory)->data(), (*memory)->file_bytes(), MADV_HUGEPAGE);
    RETURN_IF_ERROR(Populate((*memory)->data(), (*memory)->file_bytes()));
  }
  return memory;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHostMemory(std::size_t bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, MapMemory(bytes));
  std::memset(memory->data(), 0, bytes);
  return memory;
}

std::shared_ptr<std::byte> HugePageArena::Allocate(std::size_t bytes) {
  const std::size_t rounded = RoundUp(bytes, kCacheLineBytes);
  if (mapping_ == nullptr || mapping_->size_bytes() - used_bytes_ < rounded) {
    absl::StatusOr<std::unique_ptr<DeviceMemory>> mapping =
        MapMemory(RoundUp(std::max(rounded, kArenaBytes), kHugePageBytes));
    if (!mapping.ok()) {
      return nullptr;
    }
    mapping_ = *std::move(mapping);
    used_bytes_ = 0;
  }
  std::byte* const piece = mapping_->data() + used_bytes_;
  used_bytes_ += rounded;
  return {mapping_, piece};
}

void FreeDeleter::operator()(void* p) const {
  std::free(p);
}

void* AllocateAligned(std::size_t bytes) {
  return std::aligned_alloc(kCacheLineBytes, RoundUp(bytes, kCacheLineBytes));
}

}  // namespace baton
