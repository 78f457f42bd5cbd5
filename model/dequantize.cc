// The block formats of GGUF, little-endian, one decoder each. A decoder gets one block and writes
// FormatOf().values values. Where a formula has one product and one sum, both are float32
// operations in that order; the product of a 16-bit scale and a small integer is exact, so there is
// one rounding.
#include <array>
#include <bit>
#include <cmath>

#include "common/check.h"
#include "model/element_type.h"

namespace baton {
namespace {

// The bytes of one block.
class Block {
 public:
  explicit Block(const char* bytes) : bytes_(bytes) {}

  int Byte(std::size_t i) const { return static_cast<unsigned char>(bytes_[i]); }
  int SignedByte(std::size_t i) const { return static_cast<signed char>(bytes_[i]); }
  std::uint32_t Word16(std::size_t i) const {
    return static_cast<std::uint32_t>(Byte(i)) | static_cast<std::uint32_t>(Byte(i + 1)) << 8;
  }
  std::uint32_t Word32(std::size_t i) const { return Word16(i) | Word16(i + 2) << 16; }
  float Half(std::size_t i) const;

 private:
  const char* bytes_;  // owned by Dequantize's caller
};

// IEEE 754 binary16.
float Block::Half(std::size_t i) const {
  const std::uint32_t bits = Word16(i);
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide_exponent = exponent == 0x1fU ? 0xffU : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

void DecodeF32(const Block& block, float* out) {
  out[0] = std::bit_cast<float>(block.Word32(0));
}

void DecodeF16(const Block& block, float* out) {
  out[0] = block.Half(0);
}

void DecodeBF16(const Block& block, float* out) {
  out[0] = std::bit_cast<float>(block.Word16(0) << 16);
}

// scale, 16 bytes: low nibbles are values 0 to 15, high nibbles 16 to 31.
void DecodeQ4_0(const Block& block, float* out) {
  const float scale = block.Half(0);
  for (std::size_t i = 0; i < 16; ++i) {
    const int packed = block.Byte(2 + i);
    out[i] = static_cast<float>((packed & 15) - 8) * scale;
    out[i + 16] = static_cast<float>((packed >> 4) - 8) * scale;
  }
}

// scale, minimum, 16 bytes as in Q4_0.
void DecodeQ4_1(const Block& block, float* out) {
  const float scale = block.Half(0);
  const float minimum = block.Half(2);
  for (std::size_t i = 0; i < 16; ++i) {
    const int packed = block.Byte(4 + i);
    out[i] = static_cast<float>(packed & 15) * scale + minimum;
    out[i + 16] = static_cast<float>(packed >> 4) * scale + minimum;
  }
}

// Value `i` of a Q5_0 or Q5_1 block: a nibble, and bit i of `high_bits` above it.
int FiveBits(const Block& block, std::size_t nibbles, std::uint32_t high_bits, std::size_t i) {
  const int packed = block.Byte(nibbles + i % 16);
  const int low = i < 16 ? packed & 15 : packed >> 4;
  return low | static_cast<int>((high_bits >> i) & 1U) << 4;
}

// scale, 32 high bits, 16 bytes of nibbles.
void DecodeQ5_0(const Block& block, float* out) {
  const float scale = block.Half(0);
  const std::uint32_t high_bits = block.Word32(2);
  for (std::size_t i = 0; i < 32; ++i) {
    out[i] = static_cast<float>(FiveBits(block, 6, high_bits, i) - 16) * scale;
  }
}

// scale, minimum, 32 high bits, 16 bytes of nibbles.
void DecodeQ5_1(const Block& block, float* out) {
  const float scale = block.Half(0);
  const float minimum = block.Half(2);
  const std::uint32_t high_bits = block.Word32(4);
  for (std::size_t i = 0; i < 32; ++i) {
    out[i] = static_cast<float>(FiveBits(block, 8, high_bits, i)) * scale + minimum;
  }
}

void DecodeQ8_0(const Block& block, float* out) {
  const float scale = block.Half(0);
  for (std::size_t i = 0; i < 32; ++i) {
    out[i] = static_cast<float>(block.SignedByte(2 + i)) * scale;
  }
}

struct ScaleAndMinimum {
  float scale = 0;
  float minimum = 0;
};

// Sub-block `i` of 8 in a Q4_K or Q5_K block: two halves, then 12 bytes that pack eight 6-bit
// scales and eight 6-bit minimums. The first four of each lie in the low six bits of bytes 0-3 and
// 4-7; the last four have their low nibbles in bytes 8-11 and their two top bits in the top bits of
// bytes 0-3 and 4-7.
ScaleAndMinimum SubBlockScale(const Block& block, std::size_t i) {
  constexpr std::size_t kPacked = 4;
  int scale = 0;
  int minimum = 0;
  if (i < 4) {
    scale = block.Byte(kPacked + i) & 63;
    minimum = block.Byte(kPacked + 4 + i) & 63;
  } else {
    const int low = block.Byte(kPacked + 4 + i);
    scale = (low & 15) | block.Byte(kPacked + i - 4) >> 6 << 4;
    minimum = low >> 4 | block.Byte(kPacked + i) >> 6 << 4;
  }
  return {.scale = block.Half(0) * static_cast<float>(scale),
          .minimum = block.Half(2) * static_cast<float>(minimum)};
}

// 256 values in four groups of 64: 32 bytes whose low nibbles are the first sub-block and whose
// high nibbles the second.
void DecodeQ4_K(const Block& block, float* out) {
  constexpr std::size_t kNibbles = 16;
  for (std::size_t group = 0; group < 4; ++group) {
    const ScaleAndMinimum low = SubBlockScale(block, 2 * group);
    const ScaleAndMinimum high = SubBlockScale(block, 2 * group + 1);
    for (std::size_t i = 0; i < 32; ++i) {
      const int packed = block.Byte(kNibbles + 32 * group + i);
      out[64 * group + i] = low.scale * static_cast<float>(packed & 15) - low.minimum;
      out[64 * group + 32 + i] = high.scale * static_cast<float>(packed >> 4) - high.minimum;
    }
  }
}

// As Q4_K, with 32 bytes of fifth bits before the nibbles: bit b of byte i belongs to value i of
// sub-block b.
void DecodeQ5_K(const Block& block, float* out) {
  constexpr std::size_t kHighBits = 16;
  constexpr std::size_t kNibbles = 48;
  for (std::size_t group = 0; group < 4; ++group) {
    const ScaleAndMinimum low = SubBlockScale(block, 2 * group);
    const ScaleAndMinimum high = SubBlockScale(block, 2 * group + 1);
    for (std::size_t i = 0; i < 32; ++i) {
      const int packed = block.Byte(kNibbles + 32 * group + i);
      const int fifth = block.Byte(kHighBits + i) >> (2 * group);
      const int first = (packed & 15) | (fifth & 1) << 4;
      const int second = packed >> 4 | (fifth >> 1 & 1) << 4;
      out[64 * group + i] = low.scale * static_cast<float>(first) - low.minimum;
      out[64 * group + 32 + i] = high.scale * static_cast<float>(second) - high.minimum;
    }
  }
}

// 128 bytes of low nibbles, 64 bytes of two high bits, 16 signed sub-scales, scale. Two halves of
// 128 values; in each, four groups of 32 share the same 64 bytes of nibbles and 32 bytes of high
// bits.
void DecodeQ6_K(const Block& block, float* out) {
  constexpr std::size_t kHighBits = 128;
  constexpr std::size_t kScales = 192;
  const float scale = block.Half(208);
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t group = 0; group < 4; ++group) {
      for (std::size_t i = 0; i < 32; ++i) {
        const int packed = block.Byte(64 * half + 32 * (group % 2) + i);
        const int low = group < 2 ? packed & 15 : packed >> 4;
        const int high = block.Byte(kHighBits + 32 * half + i) >> (2 * group) & 3;
        const float sub_scale =
            scale * static_cast<float>(block.SignedByte(kScales + 8 * half + 2 * group + i / 16));
        out[128 * half + 32 * group + i] = sub_scale * static_cast<float>((low | high << 4) - 32);
      }
    }
  }
}

template <void (*kDecode)(const Block&, float*)>
void DecodeBlocks(const char* bytes, const BlockFormat& format, std::span<float> out) {
  for (std::size_t done = 0; done < out.size(); done += format.values) {
    kDecode(Block(bytes), out.data() + done);
    bytes += format.bytes;
  }
}

}  // namespace

void Dequantize(ElementType type, std::string_view bytes, std::span<float> out) {
  const BlockFormat format = FormatOf(type);
  BATON_CHECK(out.size() % format.values == 0);
  BATON_CHECK(bytes.size() == out.size() / format.values * format.bytes);
  switch (type) {
    case ElementType::kF32:
      return DecodeBlocks<DecodeF32>(bytes.data(), format, out);
    case ElementType::kF16:
      return DecodeBlocks<DecodeF16>(bytes.data(), format, out);
    case ElementType::kBF16:
      return DecodeBlocks<DecodeBF16>(bytes.data(), format, out);
    case ElementType::kQ4_0:
      return DecodeBlocks<DecodeQ4_0>(bytes.data(), format, out);
    case ElementType::kQ4_1:
      return DecodeBlocks<DecodeQ4_1>(bytes.data(), format, out);
    case ElementType::kQ5_0:
      return DecodeBlocks<DecodeQ5_0>(bytes.data(), format, out);
    case ElementType::kQ5_1:
      return DecodeBlocks<DecodeQ5_1>(bytes.data(), format, out);
    case ElementType::kQ8_0:
      return DecodeBlocks<DecodeQ8_0>(bytes.data(), format, out);
    case ElementType::kQ4_K:
      return DecodeBlocks<DecodeQ4_K>(bytes.data(), format, out);
    case ElementType::kQ5_K:
      return DecodeBlocks<DecodeQ5_K>(bytes.data(), format, out);
    case ElementType::kQ6_K:
      return DecodeBlocks<DecodeQ6_K>(bytes.data(), format, out);
  }
  CheckFailed(__FILE__, __LINE__, "an ElementType that is not in the enumeration");
}

}  // namespace baton
