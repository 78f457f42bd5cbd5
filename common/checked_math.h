#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace baton {

// Sizes that come from a file or a peer are added and multiplied only through these: nullopt on
// overflow.
inline std::optional<std::uint64_t> CheckedAdd(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    return std::nullopt;
  }
  return sum;
}

inline std::optional<std::uint64_t> CheckedMultiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    return std::nullopt;
  }
  return product;
}

}  // namespace baton
