#include "common/crc32c.h"

#include <nmmintrin.h>

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

// x^(8 * bytes) modulo the polynomial.
constexpr std::uint32_t ShiftFactor(std::uint64_t bytes) {
  std::uint32_t factor = 0x80000000u;  // 1
  std::uint32_t square = 0x00800000u;  // x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) {
      factor = MultiplyModP(factor, square);
    }
    square = MultiplyModP(square, square);
  }
  return factor;
}

// The instruction has a latency of three cycles and a throughput of one: three independent streams
// of this length run side by side, and their results are joined by a multiplication each.
constexpr std::size_t kStreamBytes = 4096;
constexpr std::uint32_t kShiftOneStream = ShiftFactor(kStreamBytes);
constexpr std::uint32_t kShiftTwoStreams = ShiftFactor(2 * kStreamBytes);

std::uint64_t Load64(const char* p) {
  std::uint64_t value = 0;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

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

}  // namespace

std::uint32_t Crc32cPortable(std::string_view bytes, std::uint32_t previous) {
  std::uint32_t crc = ~previous;
  for (const char c : bytes) {
    crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  }
  return ~crc;
}

std::uint32_t Crc32c(std::string_view bytes, std::uint32_t previous) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  return has_instruction ? Crc32cSse42(bytes, previous) : Crc32cPortable(bytes, previous);
}

}  // namespace baton
