#include "kernels/cuda/ptx.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

// Every wrapper of ptx.cuh against the tables of the PTX documentation, written out here once more:
// which lane holds which element. References are in double.
namespace baton::BATON_CUDA_NAMESPACE {
namespace {

using emulated::TakeKernelError;

constexpr unsigned kSeed = 20251129;
constexpr int kWarp = 32;

// --- elements

// Any 16 bits as a number, from the definition of the format.
double Decode(unsigned bits, int exponent_bits, int fraction_bits) {
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  const int exponent = static_cast<int>((bits >> fraction_bits) & ((1u << exponent_bits) - 1));
  const double fraction =
      static_cast<double>(bits & ((1u << fraction_bits) - 1)) / (1 << fraction_bits);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1 + fraction, exponent - bias);
}

template <class T>
struct Format;
template <>
struct Format<BFloat16> {
  static constexpr int kExponentBits = 8;
  static constexpr int kFractionBits = 7;
};
template <>
struct Format<Half> {
  static constexpr int kExponentBits = 5;
  static constexpr int kFractionBits = 10;
};

template <class T>
double Decode(unsigned bits) {
  return Decode(bits, Format<T>::kExponentBits, Format<T>::kFractionBits);
}

template <class T>
class Elements : public testing::Test {};
using BothElements = testing::Types<BFloat16, Half>;
TYPED_TEST_SUITE(Elements, BothElements);

TYPED_TEST(Elements, EveryPatternHasTheValueOfItsFormatAndComesBack) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const TypeParam element{static_cast<std::uint16_t>(bits)};
    const double expected = Decode<TypeParam>(bits);
    const float value = ToFloat(element);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_EQ(FromFloat<TypeParam>(value).bits, 0x7fff) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
      ASSERT_EQ(FromFloat<TypeParam>(value).bits, bits);
    }
  }
}

// Between neighbours: below the middle, the middle (to the even one), above the middle.
TYPED_TEST(Elements, RoundsToNearestTiesToEven) {
  const unsigned infinity = ((1u << Format<TypeParam>::kExponentBits) - 1)
                            << Format<TypeParam>::kFractionBits;
  for (unsigned sign : {0u, 0x8000u}) {
    for (unsigned bits = 0; bits + 1 < infinity; ++bits) {
      const auto low = static_cast<float>(Decode<TypeParam>(sign | bits));
      const auto high = static_cast<float>(Decode<TypeParam>(sign | (bits + 1)));
      const float middle = low / 2 + high / 2;  // exact but for the smallest subnormals of BFloat16
      if (static_cast<double>(middle) * 2 != static_cast<double>(low) + static_cast<double>(high)) {
        continue;
      }
      const unsigned even = bits % 2 == 0 ? bits : bits + 1;
      ASSERT_EQ(FromFloat<TypeParam>(middle).bits, sign | even) << bits;
      ASSERT_EQ(FromFloat<TypeParam>(std::nextafter(middle, low)).bits, sign | bits);
      ASSERT_EQ(FromFloat<TypeParam>(std::nextafter(middle, high)).bits, sign | (bits + 1));
    }
    const auto largest = static_cast<float>(Decode<TypeParam>(sign | (infinity - 1)));
    const auto before = static_cast<float>(Decode<TypeParam>(sign | (infinity - 2)));
    const double step = static_cast<double>(largest) - static_cast<double>(before);
    const auto half_way = static_cast<float>(static_cast<double>(largest) + step / 2);
    EXPECT_EQ(FromFloat<TypeParam>(half_way).bits, sign | infinity);
    EXPECT_EQ(FromFloat<TypeParam>(std::nextafter(half_way, 0.0f)).bits, sign | (infinity - 1));
  }
}

TYPED_TEST(Elements, PairsKeepTheFirstInTheLowerHalf) {
  const unsigned pair = PackPair<TypeParam>(1.0f, -2.0f);

  EXPECT_EQ(Decode<TypeParam>(pair & 0xffffu), 1);
  EXPECT_EQ(Decode<TypeParam>(pair >> 16), -2);
  EXPECT_EQ(UnpackPair<TypeParam>(pair).x, 1);
  EXPECT_EQ(UnpackPair<TypeParam>(pair).y, -2);
}

// --- mma

template <class T>
__global__ void MultiplyOnce(const unsigned* a, const unsigned* b, const float* c, float* d) {
  const unsigned lane = threadIdx.x;
  const unsigned my_a[4] = {a[lane * 4], a[lane * 4 + 1], a[lane * 4 + 2], a[lane * 4 + 3]};
  const unsigned my_b[2] = {b[lane * 2], b[lane * 2 + 1]};
  float sums[4] = {c[lane * 4], c[lane * 4 + 1], c[lane * 4 + 2], c[lane * 4 + 3]};
  MultiplyTiles<T>(sums, my_a, my_b);
  for (unsigned i = 0; i < 4; ++i) {
    d[lane * 4 + i] = sums[i];
  }
}

TYPED_TEST(Elements, MultiplyTilesHasTheFragmentsOfThePtxDocumentation) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  std::vector<TypeParam> a(16 * 16);
  std::vector<TypeParam> b(16 * 8);
  std::vector<float> c(16 * 8);
  for (TypeParam& element : a) {
    element = FromFloat<TypeParam>(normal(random));
  }
  for (TypeParam& element : b) {
    element = FromFloat<TypeParam>(normal(random));
  }
  for (float& element : c) {
    element = normal(random);
  }

  std::vector<TypeParam> lane_a(kWarp * 8);
  std::vector<TypeParam> lane_b(kWarp * 4);
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
  std::memcpy(packed_a.data(), lane_a.data(), lane_a.size() * sizeof(TypeParam));
  std::memcpy(packed_b.data(), lane_b.data(), lane_b.size() * sizeof(TypeParam));
  std::vector<float> lane_d(kWarp * 4, -99);

  ASSERT_EQ(Launch(&MultiplyOnce<TypeParam>, dim3(1), dim3(kWarp), 0, nullptr, packed_a.data(),
                   packed_b.data(), lane_c.data(), lane_d.data()),
            0);

  EXPECT_EQ(TakeKernelError(), "");
  for (std::size_t lane = 0; lane < kWarp; ++lane) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t row = lane / 4 + (i < 2 ? 0 : 8);
      const std::size_t column = lane % 4 * 2 + (i & 1);
      double expected = static_cast<double>(c[row * 8 + column]);
      double size = std::fabs(expected);
      for (std::size_t k = 0; k < 16; ++k) {
        const double product =
            Decode<TypeParam>(a[row * 16 + k].bits) * Decode<TypeParam>(b[k * 8 + column].bits);
        expected += product;
        size += std::fabs(product);
      }
      // 16 sums in float, each off by at most half a unit of the largest sum in between.
      EXPECT_NEAR(static_cast<double>(lane_d[lane * 4 + i]), expected, size * 16 * 0x1p-24)
          << "lane " << lane << " d" << i << " seed " << kSeed;
    }
  }
}

// --- ldmatrix

// Shared memory is `rows` of 8 elements; row r of matrix m lies at row_of[m * 8 + r].
template <int kMatrices, bool kTransposed>
__global__ void LoadOnce(const std::uint16_t* elements,
                         int rows,
                         const int* row_of,
                         unsigned* loaded) {
  std::uint16_t* const shared = DynamicShared<std::uint16_t>();
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < rows * 8; i += kWarp) {
    shared[i] = elements[i];
  }
  __syncthreads();
  unsigned r[kMatrices];
  // Lanes that name no row of an x2 load give an address that must not be looked at.
  const void* const row = lane < kMatrices * 8 ? shared + row_of[lane] * 8 : nullptr;
  if constexpr (kMatrices == 4) {
    kTransposed ? LoadMatrices4Transposed(r, row) : LoadMatrices4(r, row);
  } else {
    kTransposed ? LoadMatrices2Transposed(r, row) : LoadMatrices2(r, row);
  }
  for (int m = 0; m < kMatrices; ++m) {
    loaded[lane * kMatrices + m] = r[m];
  }
}

template <int kMatrices, bool kTransposed>
void TestLoadMatrices() {
  constexpr int kRows = 40;
  std::mt19937 random(kSeed);
  std::vector<std::uint16_t> elements(kRows * 8);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    elements[i] = static_cast<std::uint16_t>(i + 1);
  }
  std::vector<int> row_of(kRows);
  for (int i = 0; i < kRows; ++i) {
    row_of[static_cast<std::size_t>(i)] = i;
  }
  std::shuffle(row_of.begin(), row_of.end(), random);
  std::vector<unsigned> loaded(kWarp * kMatrices);

  ASSERT_EQ(Launch(&LoadOnce<kMatrices, kTransposed>, dim3(1), dim3(kWarp), kRows * 16, nullptr,
                   elements.data(), kRows, row_of.data(), loaded.data()),
            0);

  EXPECT_EQ(TakeKernelError(), "");
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int m = 0; m < kMatrices; ++m) {
      const unsigned pair = loaded[static_cast<std::size_t>(lane * kMatrices + m)];
      for (int i = 0; i < 2; ++i) {
        // Thread T of the documentation's table holds row T / 4, columns T % 4 * 2 and + 1.
        const int table_row = lane / 4;
        const int table_column = lane % 4 * 2 + i;
        const int row = kTransposed ? table_column : table_row;
        const int column = kTransposed ? table_row : table_column;
        const int at = row_of[static_cast<std::size_t>(m * 8 + row)] * 8 + column;
        EXPECT_EQ((pair >> (16 * i)) & 0xffffu, elements[static_cast<std::size_t>(at)])
            << "lane " << lane << " matrix " << m << " half " << i << " seed " << kSeed;
      }
    }
  }
}

TEST(LoadMatrices, FourMatrices) {
  TestLoadMatrices<4, false>();
}
TEST(LoadMatrices, FourMatricesTransposed) {
  TestLoadMatrices<4, true>();
}
TEST(LoadMatrices, TwoMatricesFromTheRowsOfSixteenLanes) {
  TestLoadMatrices<2, false>();
}
TEST(LoadMatrices, TwoMatricesTransposed) {
  TestLoadMatrices<2, true>();
}

// --- cp.async

// Copies piece i with source_bytes[i] into shared memory; `groups` says how many of the pieces'
// groups (one each) are waited for, and what is seen then is written out.
template <int kKeptGroups>
__global__ void CopyPieces(const std::uint32_t* source,
                           const int* source_bytes,
                           int pieces,
                           std::uint32_t* seen) {
  std::uint32_t* const shared = DynamicShared<std::uint32_t>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < pieces; ++i) {
      CopyAsync16(shared + i * 4, source + i * 4, source_bytes[i]);
      CommitCopies();
    }
    WaitForCopies<kKeptGroups>();
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < pieces * 4; i += kWarp) {
    seen[i] = shared[i];
  }
}

std::vector<std::uint32_t> Numbered(std::size_t words) {
  std::vector<std::uint32_t> source(words);
  for (std::size_t i = 0; i < words; ++i) {
    source[i] = 0x01010101u * static_cast<std::uint32_t>(i + 1);
  }
  return source;
}

TEST(CopyAsync, BytesPastTheSourceBecomeZero) {
  const std::vector<int> source_bytes = {16, 0, 1, 4, 8, 15};
  const auto pieces = static_cast<int>(source_bytes.size());
  const std::vector<std::uint32_t> source = Numbered(source_bytes.size() * 4);
  std::vector<std::uint32_t> seen(source.size(), 7);

  ASSERT_EQ(Launch(&CopyPieces<0>, dim3(1), dim3(kWarp), seen.size() * 4, nullptr, source.data(),
                   source_bytes.data(), pieces, seen.data()),
            0);

  EXPECT_EQ(TakeKernelError(), "");
  for (std::size_t i = 0; i < source_bytes.size(); ++i) {
    std::vector<std::uint32_t> expected(4, 0);
    std::memcpy(expected.data(), &source[i * 4], static_cast<std::size_t>(source_bytes[i]));
    EXPECT_EQ(std::vector<std::uint32_t>(&seen[i * 4], &seen[i * 4] + 4), expected)
        << source_bytes[i];
  }
}

template <int kKeptGroups>
void ExpectOnlyTheOldestGroupsLanded() {
  constexpr std::size_t kPieces = 4;
  const std::vector<int> source_bytes(kPieces, 16);
  const std::vector<std::uint32_t> source = Numbered(kPieces * 4);
  std::vector<std::uint32_t> seen(source.size(), 7);

  ASSERT_EQ(Launch(&CopyPieces<kKeptGroups>, dim3(1), dim3(kWarp), seen.size() * 4, nullptr,
                   source.data(), source_bytes.data(), static_cast<int>(kPieces), seen.data()),
            0);

  EXPECT_EQ(TakeKernelError(), "");
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool landed = i / 4 + kKeptGroups < kPieces;
    EXPECT_EQ(seen[i], landed ? source[i] : 0xffffffffu)
        << "kept groups " << kKeptGroups << " word " << i;
  }
}

TEST(CopyAsync, WhatIsNotWaitedForIsPoison) {
  ExpectOnlyTheOldestGroupsLanded<0>();
  ExpectOnlyTheOldestGroupsLanded<1>();
  ExpectOnlyTheOldestGroupsLanded<3>();
  ExpectOnlyTheOldestGroupsLanded<4>();
}

// An open group is not waited for, an empty one counts.
__global__ void CopyBesideTheGroups(const std::uint32_t* source, std::uint32_t* seen) {
  std::uint32_t* const shared = DynamicShared<std::uint32_t>();
  CopyAsync16(shared, source);
  CommitCopies();
  CommitCopies();
  CopyAsync16(shared + 4, source + 4);
  WaitForCopies<1>();
  seen[0] = shared[0];
  WaitForCopies<0>();
  seen[1] = shared[4];
  CommitCopies();
  WaitForCopies<0>();
  seen[2] = shared[4];
}

TEST(CopyAsync, OpenGroupsAreNotWaitedForAndEmptyOnesCount) {
  const std::vector<std::uint32_t> source = Numbered(8);
  std::vector<std::uint32_t> seen(3);

  ASSERT_EQ(Launch(&CopyBesideTheGroups, dim3(1), dim3(1), 32, nullptr, source.data(), seen.data()),
            0);

  EXPECT_EQ(TakeKernelError(), "");
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{source[0], 0xffffffffu, source[4]}));
}

__global__ void CopyFrom(const char* source) {
  CopyAsync16(DynamicShared<char>(), source);
}
__global__ void CopyTo(const char* source, int offset) {
  CopyAsync16(DynamicShared<char>() + offset, source);
}
__global__ void LoadFrom(int offset) {
  unsigned r[4];
  LoadMatrices4(r, DynamicShared<char>() + offset);
}

TEST(Alignment, AddressesOffTheGridOfSixteenBytesFailTheKernel) {
  alignas(16) const char source[64] = {};

  ASSERT_EQ(Launch(&CopyFrom, dim3(1), dim3(1), 64, nullptr, source + 8), 0);
  EXPECT_EQ(TakeKernelError(),
            "block (0, 0, 0) thread (0, 0, 0): cp.async from global memory: the address is no "
            "multiple of 16");
  ASSERT_EQ(Launch(&CopyTo, dim3(1), dim3(1), 64, nullptr, source, 4), 0);
  EXPECT_EQ(TakeKernelError(),
            "block (0, 0, 0) thread (0, 0, 0): cp.async to shared memory: the address is no "
            "multiple of 16");
  ASSERT_EQ(Launch(&LoadFrom, dim3(1), dim3(kWarp), 64, nullptr, 2), 0);
  EXPECT_EQ(TakeKernelError(),
            "block (0, 0, 0) thread (0, 0, 0): ldmatrix: the address is no multiple of 16");
}

// --- ex2

__global__ void Exponentials(const float* x, float* y, int count) {
  for (int i = 0; i < count; ++i) {
    y[i] = Exp2(x[i]);
  }
}

TEST(Exp2, IsWithinTheStatedErrorAndFlushesSubnormalResults) {
  std::vector<float> x;
  for (float at = -130; at <= 128; at += 0.37f) {
    x.push_back(at);
  }
  x.push_back(-std::numeric_limits<float>::infinity());
  std::vector<float> y(x.size());

  ASSERT_EQ(Launch(&Exponentials, dim3(1), dim3(1), 0, nullptr, x.data(), y.data(),
                   static_cast<int>(x.size())),
            0);

  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp2(static_cast<double>(x[i]));
    const double expected = exact < 0x1p-126 ? 0 : exact;
    EXPECT_NEAR(static_cast<double>(y[i]), expected, expected * 0x1p-22) << x[i];
  }
  EXPECT_EQ(TakeKernelError(), "");
}

}  // namespace
}  // namespace baton::BATON_CUDA_NAMESPACE
