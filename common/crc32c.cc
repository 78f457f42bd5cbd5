#include "common/crc32c.h"

#include <immintrin.h>

#include <array>
#include <cstring>

namespace baton {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;

constexpr std::array<std::uint32_t, 256> MakeTable() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    }
    table[i] = value;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kTable = MakeTable();

// a * b in GF(2)[x] modulo the polynomial, bit-reflected: the highest bit is x^0.
constexpr std::uint32_t MultiplyModP(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t mask = 0x80000000u; mask != 0; mask >>= 1) {
    if ((a & mask) != 0) {
      product ^= b;
    }
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// x^exponent modulo the polynomial.
constexpr std::uint32_t PowerOfX(std::uint64_t exponent) {
  std::uint32_t power = 0x80000000u;   // 1
  std::uint32_t square = 0x40000000u;  // x
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) {
      power = MultiplyModP(power, square);
    }
    square = MultiplyModP(square, square);
  }
  return power;
}

// The instruction has a latency of three cycles and a throughput of one: three independent streams
// of this length run side by side, and their results are joined by a multiplication each.
constexpr std::size_t kStreamBytes = 4096;
constexpr std::uint32_t kShiftOneStream = PowerOfX(8 * kStreamBytes);
constexpr std::uint32_t kShiftTwoStreams = PowerOfX(16 * kStreamBytes);

std::uint64_t Load64(const char* p) {
  std::uint64_t value = 0;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

}  // namespace

__attribute__((target("sse4.2"))) std::uint32_t Crc32cSse42(std::string_view bytes,
                                                            std::uint32_t previous) {
  std::uint64_t crc = ~previous;
  const char* p = bytes.data();
  std::size_t left = bytes.size();
  while (left >= 3 * kStreamBytes) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kStreamBytes; i += 8) {
      crc = _mm_crc32_u64(crc, Load64(p + i));
      second = _mm_crc32_u64(second, Load64(p + kStreamBytes + i));
      third = _mm_crc32_u64(third, Load64(p + 2 * kStreamBytes + i));
    }
    crc = MultiplyModP(kShiftTwoStreams, static_cast<std::uint32_t>(crc)) ^
          MultiplyModP(kShiftOneStream, static_cast<std::uint32_t>(second)) ^ third;
    p += 3 * kStreamBytes;
    left -= 3 * kStreamBytes;
  }
  for (; left >= 8; p += 8, left -= 8) {
    crc = _mm_crc32_u64(crc, Load64(p));
  }
  auto tail = static_cast<std::uint32_t>(crc);
  for (; left > 0; ++p, --left) {
    tail = _mm_crc32_u8(tail, static_cast<unsigned char>(*p));
  }
  return ~tail;
}

namespace {

// What each half of 128 bits is multiplied by to move it `bits` bits forward. A product of two
// bit-reflected numbers comes out one bit lower than theirs, hence the shift.
constexpr std::uint64_t LowFactor(std::uint64_t bits) {
  return std::uint64_t{PowerOfX(bits + 32)} << 1;
}
constexpr std::uint64_t HighFactor(std::uint64_t bits) {
  return std::uint64_t{PowerOfX(bits - 32)} << 1;
}

#define BATON_CLMUL_TARGET target("avx512f,vpclmulqdq,sse4.2")

// `next`, with `past` moved forward to it.
__attribute__((BATON_CLMUL_TARGET)) inline __m512i Fold(__m512i past,
                                                        __m512i factors,
                                                        __m512i next) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(past, factors, 0x00),
                                   _mm512_clmulepi64_epi128(past, factors, 0x11), next,
                                   kXorOfThree);
}

__attribute__((BATON_CLMUL_TARGET)) inline __m512i Factors(std::uint64_t low, std::uint64_t high) {
  const auto l = static_cast<long long>(low);
  const auto h = static_cast<long long>(high);
  return _mm512_set_epi64(h, l, h, l, h, l, h, l);
}

// Carry-less multiplication takes 256 bytes a step, so that bytes in the cache cost next to
// nothing: what is left is a remainder of 64 bytes, and a tail for the instruction.
__attribute__((BATON_CLMUL_TARGET)) std::uint32_t Crc32cClmul(std::string_view bytes,
                                                              std::uint32_t previous) {
  constexpr std::size_t kLane = 64;
  constexpr std::size_t kStep = 4 * kLane;
  if (bytes.size() < kStep) {
    return Crc32cSse42(bytes, previous);
  }
  const char* p = bytes.data();
  std::size_t left = bytes.size() - kStep;
  const __m512i seed = _mm512_maskz_set1_epi32(1, static_cast<int>(~previous));
  __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), seed);
  __m512i b = _mm512_loadu_si512(p + kLane);
  __m512i c = _mm512_loadu_si512(p + 2 * kLane);
  __m512i d = _mm512_loadu_si512(p + 3 * kLane);
  const __m512i by_step = Factors(LowFactor(8 * kStep), HighFactor(8 * kStep));
  for (p += kStep; left >= kStep; p += kStep, left -= kStep) {
    a = Fold(a, by_step, _mm512_loadu_si512(p));
    b = Fold(b, by_step, _mm512_loadu_si512(p + kLane));
    c = Fold(c, by_step, _mm512_loadu_si512(p + 2 * kLane));
    d = Fold(d, by_step, _mm512_loadu_si512(p + 3 * kLane));
  }
  const __m512i by_lane = Factors(LowFactor(8 * kLane), HighFactor(8 * kLane));
  d = Fold(Fold(Fold(a, by_lane, b), by_lane, c), by_lane, d);
  alignas(kLane) std::array<char, kLane> remainder;
  _mm512_store_si512(remainder.data(), d);
  // All ones, because the instruction's users invert what they begin and end with.
  const std::uint32_t folded = Crc32cSse42({remainder.data(), kLane}, ~std::uint32_t{0});
  return Crc32cSse42({p, left}, folded);
}

#undef BATON_CLMUL_TARGET

using Function = std::uint32_t (*)(std::string_view, std::uint32_t);

Function Fastest() {
  if (__builtin_cpu_supports("sse4.2") == 0) {
    return &Crc32cPortable;
  }
  const bool clmul =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
  return clmul ? &Crc32cClmul : &Crc32cSse42;
}

}  // namespace

std::uint32_t Crc32cPortable(std::string_view bytes, std::uint32_t previous) {
  std::uint32_t crc = ~previous;
  for (const char c : bytes) {
    crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  }
  return ~crc;
}

std::uint32_t Crc32c(std::string_view bytes, std::uint32_t previous) {
  static const Function fastest = Fastest();
  return fastest(bytes, previous);
}

}  // namespace baton
