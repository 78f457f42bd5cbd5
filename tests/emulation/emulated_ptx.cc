#include "tests/emulation/emulated_ptx.h"

#include <bit>

#include "kernels/cuda/elements.cuh"

namespace baton::emulated {
namespace {

using emulated_kernels::BFloat16;
using emulated_kernels::Half;
using emulated_kernels::UnpackPair;

constexpr std::uint32_t kAllLanes = 0xffffffffu;

struct Tiles {
  float* d = nullptr;
  const unsigned* a = nullptr;
  const unsigned* b = nullptr;
};

// The fragments of all lanes, put together, multiplied, and given back. Sums start at d and go
// through k in order.
template <class T>
void CompleteMultiply(void* const* operands, std::uint32_t) {
  float a[16][16];
  float b[16][8];
  float d[16][8];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const Tiles& tiles = *static_cast<const Tiles*>(operands[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const float2 pair = UnpackPair<T>(tiles.a[i]);
      const int row = g + i % 2 * 8;
      const int column = 2 * t + i / 2 * 8;
      a[row][column] = pair.x;
      a[row][column + 1] = pair.y;
    }
    for (int i = 0; i < 2; ++i) {
      const float2 pair = UnpackPair<T>(tiles.b[i]);
      b[2 * t + i * 8][g] = pair.x;
      b[2 * t + i * 8 + 1][g] = pair.y;
    }
    d[g][2 * t] = tiles.d[0];
    d[g][2 * t + 1] = tiles.d[1];
    d[g + 8][2 * t] = tiles.d[2];
    d[g + 8][2 * t + 1] = tiles.d[3];
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) {
        d[row][column] += a[row][k] * b[k][column];
      }
    }
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    float* const out = static_cast<const Tiles*>(operands[lane])->d;
    const int g = lane / 4;
    const int t = lane % 4;
    out[0] = d[g][2 * t];
    out[1] = d[g][2 * t + 1];
    out[2] = d[g + 8][2 * t];
    out[3] = d[g + 8][2 * t + 1];
  }
}

std::uint32_t Element(const void* rows, int column) {
  const std::uint32_t pair = static_cast<const MatrixRows*>(rows)->row[column / 2];
  return column % 2 == 0 ? pair & 0xffffu : pair >> 16;
}

void CompleteLoadMatrices(void* const* operands, std::uint32_t) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    MatrixRows& mine = *static_cast<MatrixRows*>(operands[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int m = 0; m < mine.matrices; ++m) {
      void* const* const rows = operands + m * 8;
      const std::uint32_t low = mine.transposed ? Element(rows[2 * t], g) : Element(rows[g], 2 * t);
      const std::uint32_t high =
          mine.transposed ? Element(rows[2 * t + 1], g) : Element(rows[g], 2 * t + 1);
      mine.result[m] = low | (high << 16);
    }
  }
}

}  // namespace

void MultiplyTiles(TileElement element, float* d, const unsigned* a, const unsigned* b) {
  Tiles tiles{d, a, b};
  const Complete complete =
      element == TileElement::kBFloat16 ? &CompleteMultiply<BFloat16> : &CompleteMultiply<Half>;
  WarpCollective(kAllLanes, complete, &tiles, std::source_location::current());
}

void ExchangeMatrixRows(MatrixRows* rows) {
  WarpCollective(kAllLanes, &CompleteLoadMatrices, rows, std::source_location::current());
}

}  // namespace baton::emulated
