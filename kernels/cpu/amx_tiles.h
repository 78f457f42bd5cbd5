#pragma once

#include <cstddef>
#include <cstdint>

// The tile registers of AMX: eight registers of up to 16 rows of 64 bytes, and the product of two
// of them added to a third. A tile of bf16 pairs A [rows, 16 words] times a tile B [16 words, 16
// columns] adds, for each row and column, 32 products to a float; rows do not touch each other.
//
// Written as assembly since g++ 12's intrinsics do not tell the compiler what memory they read.
// Unnamed namespace: see vector_plain.h.
namespace baton {
namespace {

inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;
inline constexpr int kTileWords = 16;  // in a row: pairs of bf16, or floats

// As LDTILECFG reads it.
struct TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Gives the calling thread tiles of one configuration, zeroed. On the way out they are released,
// so that a context switch has nothing to save.
class TileScope {
 public:
  explicit TileScope(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  ~TileScope() { asm volatile("tilerelease"); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

template <int kTile>
inline void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// Rows are `stride` bytes apart, here and below.
template <int kTile>
inline void LoadTile(const void* first, std::ptrdiff_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(first), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
inline void StoreTile(void* first, std::ptrdiff_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(first), "r"(stride), "i"(kTile) : "memory");
}

// kSum += kA * kB
template <int kSum, int kA, int kB>
inline void DotTile() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

}  // namespace
}  // namespace baton
