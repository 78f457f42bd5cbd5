#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace baton {

// Takes values from the bytes a fuzzer invents, and from numbers drawn with these bytes as the seed
// once they are used up: a fuzzer begins with a few bytes, which alone would say little.
//
// Not thread-safe. Does not own the bytes.
class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : rest_(data, size) {
    for (const std::uint8_t byte : rest_) {
      state_ = (state_ ^ byte) * 0x100000001b3u;  // FNV-1a
    }
  }

  template <typename T>
  T Take() {
    T value{};
    if (rest_.size() >= sizeof(T)) {
      std::memcpy(&value, rest_.data(), sizeof(T));
      rest_ = rest_.subspan(sizeof(T));
    } else {
      rest_ = {};
      const std::uint64_t drawn = Draw();
      std::memcpy(&value, &drawn, sizeof(T));
    }
    return value;
  }
  // In [0, end).
  int Below(int end) { return Take<std::uint8_t>() % end; }
  bool Flip() { return (Take<std::uint8_t>() & 1) != 0; }
  std::string Bytes(std::size_t most) {
    std::string bytes(Take<std::uint16_t>() % (most + 1), '\0');
    for (char& byte : bytes) {
      byte = Take<char>();
    }
    return bytes;
  }

 private:
  // SplitMix64 (Steele, Lea and Flood, 2014).
  std::uint64_t Draw() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t value = state_;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
  }

  std::uint64_t state_ = 0xcbf29ce484222325u;
  std::span<const std::uint8_t> rest_;
};

}  // namespace baton
