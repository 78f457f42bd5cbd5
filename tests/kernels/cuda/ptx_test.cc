#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/ptx_kernels.h"

// Every wrapper of ptx.cuh against the tables of the PTX documentation, written out here once more:
// which lane holds which element. References are in double. On a GPU the same tests hold the
// instructions themselves to the tables.
namespace baton {
namespace {

constexpr unsigned kSeed = 20251129;
constexpr std::size_t kWarp = 32;

const PtxKernels& KernelsOfPtx() {
#ifdef BATON_TEST_ON_GPU
  return GpuPtxKernels();
#else
  return EmulatedPtxKernels();
#endif
}

struct Format {
  cuda::Element element;
  const char* name;
  int exponent_bits;
  int fraction_bits;
};

constexpr Format kFormats[] = {{cuda::Element::kBFloat16, "BFloat16", 8, 7},
                               {cuda::Element::kHalf, "Half", 5, 10}};

// Any 16 bits as a number, from the definition of the format.
double Decode(const Format& format, unsigned bits) {
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  const int exponent =
      static_cast<int>((bits >> format.fraction_bits) & ((1u << format.exponent_bits) - 1));
  const double fraction =
      static_cast<double>(bits & ((1u << format.fraction_bits) - 1)) / (1 << format.fraction_bits);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1 + fraction, exponent - bias);
}

std::vector<std::uint16_t> FromFloats(const Format& format, const std::vector<float>& values) {
  const DeviceArray<float> input(values);
  const DeviceArray<std::uint16_t> bits(values.size());
  EXPECT_EQ(KernelsOfPtx().from_float(format.element, input.data(), bits.data(),
                                      static_cast<int>(values.size())),
            0);
  return bits.Download();
}

class PtxElements : public testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(Formats, PtxElements, testing::ValuesIn(kFormats), [](const auto& format) {
  return std::string(format.param.name);
});

TEST_P(PtxElements, EveryPatternHasTheValueOfItsFormatAndComesBack) {
  std::vector<std::uint16_t> patterns(0x10000);
  std::iota(patterns.begin(), patterns.end(), std::uint16_t{0});
  const DeviceArray<std::uint16_t> input(patterns);
  const DeviceArray<float> output(patterns.size());

  ASSERT_EQ(KernelsOfPtx().to_float(GetParam().element, input.data(), output.data(), 0x10000), 0);

  const std::vector<float> values = output.Download();
  const std::vector<std::uint16_t> back = FromFloats(GetParam(), values);
  for (std::size_t bits = 0; bits < patterns.size(); ++bits) {
    const double expected = Decode(GetParam(), static_cast<unsigned>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(values[bits])) << bits;
      ASSERT_EQ(back[bits], 0x7fff) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(values[bits]), expected) << bits;
      ASSERT_EQ(back[bits], bits);
    }
  }
}

// Between neighbours: below the middle, the middle (to the even one), above the middle.
TEST_P(PtxElements, RoundsToNearestTiesToEven) {
  const Format& format = GetParam();
  const unsigned infinity = ((1u << format.exponent_bits) - 1) << format.fraction_bits;
  std::vector<float> values;
  std::vector<unsigned> expected;
  const auto add = [&](float value, unsigned bits) {
    values.push_back(value);
    expected.push_back(bits);
  };
  for (unsigned sign : {0u, 0x8000u}) {
    for (unsigned bits = 0; bits + 1 < infinity; ++bits) {
      const double low = Decode(format, sign | bits);
      const double high = Decode(format, sign | (bits + 1));
      const auto middle =
          static_cast<float>((low + high) / 2);  // exact: a float has room for one bit more
      ASSERT_EQ(static_cast<double>(middle) * 2, low + high);
      add(middle, sign | (bits % 2 == 0 ? bits : bits + 1));
      add(std::nextafter(middle, static_cast<float>(low)), sign | bits);
      add(std::nextafter(middle, static_cast<float>(high)), sign | (bits + 1));
    }
    const double largest = Decode(format, sign | (infinity - 1));
    const double step = largest - Decode(format, sign | (infinity - 2));
    const auto half_way = static_cast<float>(largest + step / 2);
    add(half_way, sign | infinity);
    add(std::nextafter(half_way, 0.0f), sign | (infinity - 1));
  }

  const std::vector<std::uint16_t> bits = FromFloats(format, values);

  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(bits[i], expected[i]) << values[i];
  }
}

TEST_P(PtxElements, PairsKeepTheFirstInTheLowerHalf) {
  const DeviceArray<float> values(std::vector<float>{1, -2, 0.5f, 3});
  const DeviceArray<unsigned> pairs(2);
  const DeviceArray<float> unpacked(4);

  ASSERT_EQ(
      KernelsOfPtx().pack(GetParam().element, values.data(), pairs.data(), unpacked.data(), 2), 0);

  const std::vector<unsigned> packed = pairs.Download();
  EXPECT_EQ(Decode(GetParam(), packed[0] & 0xffffu), 1);
  EXPECT_EQ(Decode(GetParam(), packed[0] >> 16), -2);
  EXPECT_EQ(unpacked.Download(), values.Download());
}

TEST_P(PtxElements, MultiplyTilesHasTheFragmentsOfTheDocumentation) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::size_t count) {
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    return values;
  };
  const std::vector<std::uint16_t> a = FromFloats(GetParam(), fill(16 * 16));
  const std::vector<std::uint16_t> b = FromFloats(GetParam(), fill(16 * 8));
  const std::vector<float> c = fill(16 * 8);
  std::vector<std::uint16_t> lane_a(kWarp * 8);
  std::vector<std::uint16_t> lane_b(kWarp * 4);
  std::vector<float> lane_c(kWarp * 4);
  for (std::size_t lane = 0; lane < kWarp; ++lane) {
    const std::size_t group = lane / 4;
    const std::size_t in_group = lane % 4;
    for (std::size_t i = 0; i < 8; ++i) {  // a0 to a7
      const std::size_t row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
      const std::size_t column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
      lane_a[lane * 8 + i] = a[row * 16 + column];
    }
    for (std::size_t i = 0; i < 4; ++i) {  // b0 to b3
      const std::size_t row = in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0);
      lane_b[lane * 4 + i] = b[row * 8 + group];
    }
    for (std::size_t i = 0; i < 4; ++i) {  // c0 to c3
      const std::size_t row = i < 2 ? group : group + 8;
      lane_c[lane * 4 + i] = c[row * 8 + in_group * 2 + (i & 1)];
    }
  }
  std::vector<unsigned> packed_a(kWarp * 4);
  std::vector<unsigned> packed_b(kWarp * 2);
  std::memcpy(packed_a.data(), lane_a.data(), lane_a.size() * 2);
  std::memcpy(packed_b.data(), lane_b.data(), lane_b.size() * 2);
  const DeviceArray<unsigned> device_a(packed_a);
  const DeviceArray<unsigned> device_b(packed_b);
  const DeviceArray<float> device_c(lane_c);
  const DeviceArray<float> device_d(kWarp * 4);

  ASSERT_EQ(KernelsOfPtx().multiply_tiles(GetParam().element, device_a.data(), device_b.data(),
                                          device_c.data(), device_d.data()),
            0);

  const std::vector<float> d = device_d.Download();
  for (std::size_t lane = 0; lane < kWarp; ++lane) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t row = lane / 4 + (i < 2 ? 0 : 8);
      const std::size_t column = lane % 4 * 2 + (i & 1);
      double expected = static_cast<double>(c[row * 8 + column]);
      double size = std::fabs(expected);
      for (std::size_t k = 0; k < 16; ++k) {
        const double product =
            Decode(GetParam(), a[row * 16 + k]) * Decode(GetParam(), b[k * 8 + column]);
        expected += product;
        size += std::fabs(product);
      }
      // 16 sums of 24 bits, rounded or, in tensor cores, cut off: each is off by at most one unit.
      EXPECT_NEAR(static_cast<double>(d[lane * 4 + i]), expected, size * 16 * 0x1p-23)
          << "lane " << lane << " d" << i << " seed " << kSeed;
    }
  }
}

void TestLoadMatrices(int matrices, bool transposed) {
  constexpr int kRows = 40;
  std::mt19937 random(kSeed);
  std::vector<std::uint16_t> elements(kRows * 8);
  std::iota(elements.begin(), elements.end(), std::uint16_t{1});
  std::vector<int> row_of(kRows);
  std::iota(row_of.begin(), row_of.end(), 0);
  std::shuffle(row_of.begin(), row_of.end(), random);
  const DeviceArray<std::uint16_t> device_elements(elements);
  const DeviceArray<int> device_row_of(row_of);
  const DeviceArray<unsigned> device_loaded(kWarp * static_cast<std::size_t>(matrices));

  ASSERT_EQ(KernelsOfPtx().load_matrices(matrices, transposed, device_elements.data(), kRows,
                                         device_row_of.data(), device_loaded.data()),
            0);

  const std::vector<unsigned> loaded = device_loaded.Download();
  for (int lane = 0; lane < static_cast<int>(kWarp); ++lane) {
    for (int m = 0; m < matrices; ++m) {
      const unsigned pair = loaded[static_cast<std::size_t>(lane * matrices + m)];
      for (int i = 0; i < 2; ++i) {
        // Thread T of the documentation's table holds row T / 4, columns T % 4 * 2 and + 1.
        const int table_row = lane / 4;
        const int table_column = lane % 4 * 2 + i;
        const int row = transposed ? table_column : table_row;
        const int column = transposed ? table_row : table_column;
        const int at = row_of[static_cast<std::size_t>(m * 8 + row)] * 8 + column;
        EXPECT_EQ((pair >> (16 * i)) & 0xffffu, elements[static_cast<std::size_t>(at)])
            << "lane " << lane << " matrix " << m << " half " << i << " seed " << kSeed;
      }
    }
  }
}

TEST(PtxLoadMatrices, FourMatrices) {
  TestLoadMatrices(4, false);
}
TEST(PtxLoadMatrices, FourMatricesTransposed) {
  TestLoadMatrices(4, true);
}
TEST(PtxLoadMatrices, TwoMatricesFromTheRowsOfSixteenLanes) {
  TestLoadMatrices(2, false);
}
TEST(PtxLoadMatrices, TwoMatricesTransposed) {
  TestLoadMatrices(2, true);
}

std::vector<std::uint32_t> CopyPieces(int kept_groups,
                                      const std::vector<std::uint32_t>& source,
                                      const std::vector<int>& source_bytes) {
  const DeviceArray<std::uint32_t> device_source(source);
  const DeviceArray<int> device_bytes(source_bytes);
  const DeviceArray<std::uint32_t> seen(source.size());
  EXPECT_EQ(KernelsOfPtx().copy_async(kept_groups, device_source.data(), device_bytes.data(),
                                      static_cast<int>(source_bytes.size()), seen.data()),
            0);
  return seen.Download();
}

std::vector<std::uint32_t> Numbered(std::size_t words) {
  std::vector<std::uint32_t> source(words);
  for (std::size_t i = 0; i < words; ++i) {
    source[i] = 0x01010101u * static_cast<std::uint32_t>(i + 1);
  }
  return source;
}

TEST(PtxCopyAsync, BytesPastTheSourceBecomeZero) {
  const std::vector<int> source_bytes = {16, 0, 1, 4, 8, 15};
  const std::vector<std::uint32_t> source = Numbered(source_bytes.size() * 4);

  const std::vector<std::uint32_t> seen = CopyPieces(0, source, source_bytes);

  for (std::size_t i = 0; i < source_bytes.size(); ++i) {
    std::vector<std::uint32_t> expected(4, 0);
    std::memcpy(expected.data(), &source[i * 4], static_cast<std::size_t>(source_bytes[i]));
    EXPECT_EQ(std::vector<std::uint32_t>(&seen[i * 4], &seen[i * 4] + 4), expected)
        << source_bytes[i];
  }
}

TEST(PtxCopyAsync, AWaitCoversAllButTheNewestGroups) {
  constexpr std::size_t kPieces = 4;
  const std::vector<std::uint32_t> source = Numbered(kPieces * 4);
  for (const int kept_groups : {0, 1, 2, 3, 4}) {
    const std::vector<std::uint32_t> seen =
        CopyPieces(kept_groups, source, std::vector<int>(kPieces, 16));

    for (std::size_t i = 0; i < source.size(); ++i) {
      if (i / 4 + static_cast<std::size_t>(kept_groups) < kPieces) {
        EXPECT_EQ(seen[i], source[i]) << "kept groups " << kept_groups << " word " << i;
      } else {
#ifndef BATON_TEST_ON_GPU  // where such a copy may have landed
        EXPECT_EQ(seen[i], 0xffffffffu) << "kept groups " << kept_groups << " word " << i;
#endif
      }
    }
  }
}

TEST(PtxExp2, IsWithinTheStatedErrorAndFlushesSubnormalResults) {
  std::vector<float> x;
  for (float at = -130; at <= 127.5f; at += 0.37f) {
    x.push_back(at);
  }
  x.push_back(-std::numeric_limits<float>::infinity());
  const DeviceArray<float> device_x(x);
  const DeviceArray<float> device_y(x.size());

  ASSERT_EQ(KernelsOfPtx().exp2(device_x.data(), device_y.data(), static_cast<int>(x.size())), 0);

  const std::vector<float> y = device_y.Download();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp2(static_cast<double>(x[i]));
    const double expected = exact < 0x1p-126 ? 0 : exact;
    // PTX states 2^-22.5 of relative error over the full range.
    EXPECT_NEAR(static_cast<double>(y[i]), expected, expected * 0x1p-22) << x[i];
  }
}

}  // namespace
}  // namespace baton
