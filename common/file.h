#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace baton {

// Owns a file descriptor. Move-only. Not thread-safe.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

// A whole regular file mapped for reading. Move-only; immutable after construction.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, or INVALID_ARGUMENT for something that is no regular file; the
  // path is in the message.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, void* data, std::size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  void* data_ = nullptr;  // owned mapping; null for an empty file
  std::size_t size_ = 0;
};

}  // namespace baton
