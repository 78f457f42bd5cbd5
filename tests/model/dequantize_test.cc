// Every stored type against a second decoder in double precision, written from the layout of the
// blocks and not from the code under test: it computes one value at a time from its index.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "model/element_type.h"

namespace baton {
namespace {

using Bytes = std::vector<std::uint8_t>;

double HalfAt(const Bytes& block, std::size_t at) {
  const int bits = block[at] + 256 * block[at + 1];
  const int exponent = bits / 1024 % 32;
  const int fraction = bits % 1024;
  const double sign = bits >= 32768 ? -1 : 1;
  if (exponent == 0) {
    return sign * fraction * std::pow(2.0, -24);
  }
  return sign * (1 + fraction / 1024.0) * std::pow(2.0, exponent - 15);
}

int BitsAt(const Bytes& block, std::size_t byte, int first_bit, int bits) {
  return block[byte] / (1 << first_bit) % (1 << bits);
}

int SignedAt(const Bytes& block, std::size_t at) {
  return block[at] < 128 ? block[at] : block[at] - 256;
}

// The nibble of value `i` in 16 bytes that begin at `from`: the first 16 values in the low halves.
int NibbleOf32(const Bytes& block, std::size_t from, std::size_t i) {
  return BitsAt(block, from + i % 16, i < 16 ? 0 : 4, 4);
}

// The 6-bit number `which` (0-7 scales, 8-15 minimums) of the 12 bytes behind the two halves of a K
// block.
int SixBits(const Bytes& block, std::size_t which) {
  const std::size_t sub_block = which % 8;
  const bool is_minimum = which >= 8;
  if (sub_block < 4) {
    return BitsAt(block, 4 + sub_block + (is_minimum ? 4 : 0), 0, 6);
  }
  const int low = BitsAt(block, 4 + 8 + sub_block - 4, is_minimum ? 4 : 0, 4);
  const int high = BitsAt(block, 4 + sub_block - 4 + (is_minimum ? 4 : 0), 6, 2);
  return low + 16 * high;
}

double Expected(ElementType type, const Bytes& block, std::size_t i) {
  switch (type) {
    case ElementType::kF32: {
      const std::uint32_t bits =
          block[0] + 256U * block[1] + 65536U * block[2] + 16777216U * block[3];
      const int exponent = static_cast<int>(bits >> 23 & 255);
      const double fraction = (bits & 0x7fffff) / 8388608.0;
      const double magnitude = exponent == 0 ? fraction * std::pow(2.0, -126)
                                             : (1 + fraction) * std::pow(2.0, exponent - 127);
      return bits >> 31 != 0 ? -magnitude : magnitude;
    }
    case ElementType::kBF16:
      return Expected(ElementType::kF32, {0, 0, block[0], block[1]}, 0);
    case ElementType::kF16:
      return HalfAt(block, 0);
    case ElementType::kQ4_0:
      return (NibbleOf32(block, 2, i) - 8) * HalfAt(block, 0);
    case ElementType::kQ4_1:
      return NibbleOf32(block, 4, i) * HalfAt(block, 0) + HalfAt(block, 2);
    case ElementType::kQ5_0: {
      const int fifth = BitsAt(block, 2 + i / 8, static_cast<int>(i % 8), 1);
      return (NibbleOf32(block, 6, i) + 16 * fifth - 16) * HalfAt(block, 0);
    }
    case ElementType::kQ5_1: {
      const int fifth = BitsAt(block, 4 + i / 8, static_cast<int>(i % 8), 1);
      return (NibbleOf32(block, 8, i) + 16 * fifth) * HalfAt(block, 0) + HalfAt(block, 2);
    }
    case ElementType::kQ8_0:
      return SignedAt(block, 2 + i) * HalfAt(block, 0);
    case ElementType::kQ4_K:
    case ElementType::kQ5_K: {
      const std::size_t sub_block = i / 32;
      const std::size_t nibbles = type == ElementType::kQ4_K ? 16 : 48;
      int quant =
          BitsAt(block, nibbles + sub_block / 2 * 32 + i % 32, sub_block % 2 == 0 ? 0 : 4, 4);
      if (type == ElementType::kQ5_K) {
        quant += 16 * BitsAt(block, 16 + i % 32, static_cast<int>(sub_block), 1);
      }
      return HalfAt(block, 0) * SixBits(block, sub_block) * quant -
             HalfAt(block, 2) * SixBits(block, 8 + sub_block);
    }
    case ElementType::kQ6_K: {
      const std::size_t half = i / 128;
      const std::size_t group = i % 128 / 32;
      const std::size_t in_group = i % 32;
      const int low = BitsAt(block, 64 * half + in_group + (group % 2) * 32, group < 2 ? 0 : 4, 4);
      const int high = BitsAt(block, 128 + 32 * half + in_group, static_cast<int>(2 * group), 2);
      return (low + 16 * high - 32) * SignedAt(block, 192 + i / 16) * HalfAt(block, 208);
    }
  }
  return NAN;
}

// Random blocks whose 16-bit scales are finite and of ordinary size, among them negative and
// subnormal ones.
Bytes RandomBlock(ElementType type, std::mt19937& random) {
  Bytes block(FormatOf(type).bytes);
  for (std::uint8_t& byte : block) {
    byte = static_cast<std::uint8_t>(random());
  }
  const auto tame = [&](std::size_t at) {
    constexpr unsigned kExponents = 20;
    block[at + 1] = static_cast<std::uint8_t>((random() % 2) << 7 | (random() % kExponents) << 2 |
                                              random() % 4);
  };
  switch (type) {
    case ElementType::kF32:
      block[3] = static_cast<std::uint8_t>(random() % 2 * 128 + 0x3c + random() % 8);
      break;
    case ElementType::kBF16:
      block[1] = static_cast<std::uint8_t>(random() % 2 * 128 + 0x3c + random() % 8);
      break;
    case ElementType::kF16:
    case ElementType::kQ4_0:
    case ElementType::kQ5_0:
    case ElementType::kQ8_0:
      tame(0);
      break;
    case ElementType::kQ4_1:
    case ElementType::kQ5_1:
    case ElementType::kQ4_K:
    case ElementType::kQ5_K:
      tame(0);
      tame(2);
      break;
    case ElementType::kQ6_K:
      tame(208);
      break;
  }
  return block;
}

class DequantizeTest : public testing::TestWithParam<ElementType> {};

TEST_P(DequantizeTest, AgreesWithDoubleOracle) {
  constexpr unsigned kSeed = 20240607;
  constexpr int kBlocks = 200;
  std::mt19937 random(kSeed);
  const BlockFormat format = FormatOf(GetParam());
  for (int n = 0; n < kBlocks; ++n) {
    const Bytes block = RandomBlock(GetParam(), random);
    std::vector<float> values(format.values);
    Dequantize(GetParam(), std::string(block.begin(), block.end()), values);
    for (std::size_t i = 0; i < format.values; ++i) {
      const double expected = Expected(GetParam(), block, i);
      // Products of the scales are exact in float32; one rounding of the largest term is left.
      const double largest = std::abs(expected) + 63 * 31 * std::abs(HalfAt(block, 0)) +
                             (block.size() > 3 ? 63 * std::abs(HalfAt(block, 2)) : 0);
      const bool has_sum = GetParam() == ElementType::kQ4_1 || GetParam() == ElementType::kQ5_1 ||
                           GetParam() == ElementType::kQ4_K || GetParam() == ElementType::kQ5_K;
      const double bound = std::ldexp(has_sum ? largest : std::abs(expected), -24);
      ASSERT_NEAR(values[i], expected, bound)
          << "block " << n << ", value " << i << ", seed " << kSeed;
    }
  }
}

TEST_P(DequantizeTest, DecodesBlocksOneAfterAnother) {
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  const BlockFormat format = FormatOf(GetParam());
  std::string bytes;
  std::vector<float> expected;
  for (int n = 0; n < 5; ++n) {
    const Bytes block = RandomBlock(GetParam(), random);
    std::vector<float> values(format.values);
    Dequantize(GetParam(), std::string(block.begin(), block.end()), values);
    expected.insert(expected.end(), values.begin(), values.end());
    bytes.append(block.begin(), block.end());
  }

  std::vector<float> values(5 * format.values);
  Dequantize(GetParam(), bytes, values);

  EXPECT_EQ(values, expected);
}

INSTANTIATE_TEST_SUITE_P(AllTypes,
                         DequantizeTest,
                         testing::Values(ElementType::kF32,
                                         ElementType::kF16,
                                         ElementType::kBF16,
                                         ElementType::kQ4_0,
                                         ElementType::kQ4_1,
                                         ElementType::kQ5_0,
                                         ElementType::kQ5_1,
                                         ElementType::kQ8_0,
                                         ElementType::kQ4_K,
                                         ElementType::kQ5_K,
                                         ElementType::kQ6_K),
                         [](const auto& test) { return std::string(NameOf(test.param)); });

TEST(Dequantize, KnowsGgufTypeNumbers) {
  EXPECT_EQ(ElementTypeFromGguf(3), ElementType::kQ4_1);
  EXPECT_EQ(ElementTypeFromGguf(30), ElementType::kBF16);
  for (const std::uint32_t unknown : {4U, 5U, 9U, 10U, 11U, 15U, 31U, 0xffffffffU}) {
    EXPECT_FALSE(ElementTypeFromGguf(unknown).has_value()) << unknown;
  }
}

// By hand: scale 2, minimum -3; the first byte has low nibble 5 (value 0) and high nibble 10 (value
// 16).
TEST(Dequantize, HandMadeQ4_1Block) {
  std::string block(20, '\0');
  block[1] = 0x40;
  block[2] = 0;
  block[3] = static_cast<char>(0xc2);
  block[4] = static_cast<char>(0xa5);
  std::vector<float> values(32);

  Dequantize(ElementType::kQ4_1, block, values);

  EXPECT_EQ(values[0], 7);
  EXPECT_EQ(values[16], 17);
  EXPECT_EQ(values[1], -3);
}

TEST(Dequantize, HalfKeepsInfinityAndSubnormals) {
  const auto decode = [](std::uint16_t bits) {
    std::vector<float> value(1);
    const std::string bytes = {static_cast<char>(bits & 255), static_cast<char>(bits >> 8)};
    Dequantize(ElementType::kF16, bytes, value);
    return value[0];
  };
  EXPECT_EQ(decode(0x7c00), INFINITY);
  EXPECT_EQ(decode(0xfc00), -INFINITY);
  EXPECT_TRUE(std::isnan(decode(0x7e00)));
  EXPECT_EQ(decode(0x0001), std::ldexp(1.0F, -24));
  EXPECT_EQ(decode(0x8001), -std::ldexp(1.0F, -24));
  EXPECT_EQ(decode(0x7bff), 65504);
  EXPECT_EQ(decode(0x3c00), 1);
}

}  // namespace
}  // namespace baton
