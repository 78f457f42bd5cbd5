#pragma once

#include <bit>
#include <cstdint>

namespace baton {

// IEEE binary16: 5 bits of exponent, 10 of fraction. Storage only: arithmetic happens in float.
struct Half {
  std::uint16_t bits = 0;

  friend bool operator==(Half, Half) = default;  // compares bits: 0 != -0, a NaN equals itself
};

inline float ToFloat(Half value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity and NaN
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  }
  if (magnitude < 0x400u) {  // subnormal: steps of 2^-24
    const float absolute = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -absolute : absolute;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

// Rounds to nearest, ties to even; from 65520 on to infinity. A NaN stays a NaN.
inline Half ToHalf(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu))};
  }
  if (magnitude >= 0x47800000u) {  // 65536 and more
    return {static_cast<std::uint16_t>(sign | 0x7c00u)};
  }
  if (magnitude < 0x38800000u) {
    // Below 2^-14. The float's own rounding does it: between 0.5 and 1 its steps are 2^-24, too.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0x7fffu))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace baton
