#pragma once

#include <bit>
#include <cstdint>

namespace baton {

// The upper half of a float: 8 bits of exponent, 7 of fraction. Storage only: arithmetic happens in
// float.
struct BFloat16 {
  std::uint16_t bits = 0;

  friend bool operator==(BFloat16,
                         BFloat16) = default;  // compares bits: 0 != -0, a NaN equals itself
};

inline float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Rounds to nearest, ties to even. A NaN stays a NaN (its quiet bit is set, so that it cannot round
// to infinity).
inline BFloat16 ToBFloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace baton
