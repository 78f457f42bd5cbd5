#include "kvtransfer/mapped/pool_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/byte_io.h"
#include "common/check.h"
#include "common/file.h"
#include "common/random_id.h"

namespace baton::mapped {
namespace {

using Cookie = RandomId<struct PoolCookieTag>;
static_assert(sizeof(Cookie::bytes) == kCookieBytes);

constexpr std::size_t kPopulateBytes = std::size_t{8} << 20;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kBootIdBytes = 36;

absl::Status Refuse(const std::string& why) {
  return absl::FailedPreconditionError(why);
}

// A new value at each boot: two processes that read the same one are on one host.
std::string BootId() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  text.resize(kBootIdBytes, ' ');
  return text;
}

std::uint64_t PidNamespace() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

// From a peer: any values.
struct DoorFields {
  std::string boot_id;
  std::uint64_t pid_namespace = 0;
  std::uint32_t pid = 0;
  std::uint32_t fd = 0;
  std::uint64_t file_bytes = 0;
  Cookie cookie;
};

std::optional<DoorFields> Decode(std::string_view door) {
  ByteReader in(door);
  const auto boot_id = in.GetBytes(kBootIdBytes);
  const auto pid_namespace = in.Get<std::uint64_t>();
  const auto pid = in.Get<std::uint32_t>();
  const auto fd = in.Get<std::uint32_t>();
  const auto file_bytes = in.Get<std::uint64_t>();
  const auto cookie = in.GetBytes(kCookieBytes);
  if (!cookie || in.remaining() != 0) {
    return std::nullopt;
  }
  return DoorFields{.boot_id = std::string(*boot_id),
                    .pid_namespace = *pid_namespace,
                    .pid = *pid,
                    .fd = *fd,
                    .file_bytes = *file_bytes,
                    .cookie = *Cookie::FromBytes(*cookie)};
}

absl::StatusOr<UniqueFd> OpenFile(const DoorFields& door) {
  const std::string path = absl::StrCat("/proc/", door.pid, "/fd/", door.fd);
  struct stat info {};
  // Asked before opening: opening a device or a pipe may do something.
  if (stat(path.c_str(), &info) != 0) {
    return Refuse(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return Refuse(absl::StrCat(path, ": is no memory file"));
  }
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.ok()) {
    return Refuse(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Refuse(absl::StrCat(path, ": may shrink while it is mapped"));
  }
  if (fstat(file.get(), &info) != 0 || info.st_size < 0 ||
      static_cast<std::uint64_t>(info.st_size) != door.file_bytes) {
    return Refuse(absl::StrCat(path, ": has not the size that the peer says"));
  }
  return file;
}

}  // namespace

std::string MakeDoor(const PoolFile& file) {
  BATON_CHECK(file.file_bytes >= file.pool_bytes + kCookieBytes);
  const Cookie cookie = Cookie::Make();
  std::memcpy(file.base + file.file_bytes - kCookieBytes, cookie.bytes.data(), kCookieBytes);
  ByteWriter out;
  out.PutBytes(BootId());
  out.Put(PidNamespace());
  out.Put(static_cast<std::uint32_t>(getpid()));
  out.Put(static_cast<std::uint32_t>(file.fd));
  out.Put(static_cast<std::uint64_t>(file.file_bytes));
  out.PutBytes(cookie.AsBytes());
  return std::move(out).Take();
}

absl::StatusOr<MappedPool> MappedPool::Open(std::string_view bytes, std::uint64_t pool_bytes) {
  const std::optional<DoorFields> door = Decode(bytes);
  if (!door) {
    return Refuse("the peer describes its pool in a way that is not known here");
  }
  if (door->boot_id != BootId()) {
    return Refuse("the peer is on another host");
  }
  if (door->pid_namespace != PidNamespace()) {
    return Refuse("the peer is in another pid namespace");
  }
  if (door->file_bytes < kCookieBytes || door->file_bytes - kCookieBytes < pool_bytes) {
    return Refuse("the peer's pool is larger than its file");
  }
  absl::StatusOr<UniqueFd> file = OpenFile(*door);
  if (!file.ok()) {
    return file.status();
  }
  void* mapping = mmap(nullptr, door->file_bytes, PROT_READ, MAP_SHARED, file->get(), 0);
  if (mapping == MAP_FAILED) {
    return Refuse(absl::StrCat("map the peer's pool: ", std::strerror(errno)));
  }
  MappedPool pool(static_cast<std::byte*>(mapping), door->file_bytes, pool_bytes);
  if (std::memcmp(pool.base_ + door->file_bytes - kCookieBytes, door->cookie.bytes.data(),
                  kCookieBytes) != 0) {
    return Refuse("the file is not the peer's pool");
  }
  return pool;
}

MappedPool::~MappedPool() {
  if (base_ != nullptr) {
    munmap(base_, mapping_bytes_);
  }
}

MappedPool::MappedPool(MappedPool&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      mapping_bytes_(other.mapping_bytes_),
      pool_bytes_(other.pool_bytes_),
      populated_bytes_(other.populated_bytes_) {}

MappedPool& MappedPool::operator=(MappedPool&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(pool_bytes_, other.pool_bytes_);
  std::swap(populated_bytes_, other.populated_bytes_);
  return *this;
}

bool MappedPool::PopulateMore() {
  if (populated_bytes_ >= pool_bytes_) {
    return false;
  }
  const std::size_t bytes = std::min(kPopulateBytes, pool_bytes_ - populated_bytes_);
#ifdef MADV_POPULATE_READ
  constexpr int kPopulate = MADV_POPULATE_READ;
#else
  constexpr int kPopulate = 22;  // since Linux 5.14; Debian 12's headers may be older
#endif
  if (madvise(base_ + populated_bytes_, bytes, kPopulate) != 0) {
    // An older kernel: one read for each page.
    const volatile std::byte* page = base_ + populated_bytes_;
    for (std::size_t offset = 0; offset < bytes; offset += kPageBytes) {
      static_cast<void>(page[offset]);
    }
  }
  populated_bytes_ += bytes;
  return true;
}

}  // namespace baton::mapped
