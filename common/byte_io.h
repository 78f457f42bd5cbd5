#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace baton {

// Little-endian integers and byte strings, appended to a growing buffer. Not thread-safe.
class ByteWriter {
 public:
  template <typename T>
  requires std::is_integral_v<T>
  void Put(T value) {
    const auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>((bits >> (8 * i)) & 0xff));
    }
  }
  void PutBytes(std::string_view bytes) { bytes_.append(bytes); }

  const std::string& bytes() const { return bytes_; }
  std::string Take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what ByteWriter writes. Every read is checked against the end: nullopt leaves the position
// where it was. Borrows the bytes, which must outlive it. Not thread-safe.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_integral_v<T> std::optional<T> Get() {
    if (remaining() < sizeof(T)) {
      return std::nullopt;
    }
    std::make_unsigned_t<T> bits = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bits |= static_cast<std::make_unsigned_t<T>>(
          static_cast<std::make_unsigned_t<T>>(static_cast<unsigned char>(bytes_[offset_ + i]))
          << (8 * i));
    }
    offset_ += sizeof(T);
    return static_cast<T>(bits);
  }

  std::optional<std::string_view> GetBytes(std::uint64_t count) {
    if (count > remaining()) {
      return std::nullopt;
    }
    std::string_view bytes = bytes_.substr(offset_, count);
    offset_ += count;
    return bytes;
  }

  std::size_t offset() const { return offset_; }
  std::size_t remaining() const { return bytes_.size() - offset_; }

 private:
  std::string_view bytes_;
  std::size_t offset_ = 0;
};

}  // namespace baton
