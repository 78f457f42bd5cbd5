#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/kernel_table.h"

// Blocks of up to 32 rows times the 32 columns of a panel of packed weights, on tile registers.
//
// 16 words of k of a panel are a pair of tiles as they lie. Every sum starts from zero and takes k
// in chunks of 32, the last one filled up with zeros, whatever block it falls into: that makes a
// row's result independent of the rows beside it. Unnamed namespace: see vector_plain.h.
namespace baton {
namespace {

constexpr int kChunk = 32;               // values of k in one product of tiles
constexpr int kChunkWords = kChunk / 2;  // rows of a tile of weights
constexpr int kPanelRowBytes = kPanelColumns * 4;
constexpr int kChunkPortions = 4;  // of requests for weights in a chunk
constexpr int kPortionLines = kChunkWords * kPanelRowBytes / 64 / kChunkPortions;

// One block of rows passes over a panel once, so that the panel has to be asked for shortly ahead
// of use; 4 KiB is best by a little over 1, 2 and 8. More blocks ask for the next panel meanwhile.
constexpr int kPrefetchBytes = 4096;

// The last k of a row or a panel, filled up with zeros.
struct alignas(64) PaddedInput {
  std::uint32_t words[kTileRows][kTileWords];
};
struct alignas(64) PaddedPanel {
  std::uint32_t words[kChunkWords][kPanelColumns];
};
// One tile of rows of a product.
struct alignas(64) TileSums {
  float values[kTileRows][kPanelColumns];
};

// Rows of activations.
struct AmxInput {
  const std::uint16_t* input;
  std::ptrdiff_t input_stride;  // in elements
  int rows;
  int word_columns;  // K/2
};

// Weights to ask for while a block runs: in small portions between the products, since many
// requests at once hold up the loads behind them.
struct WeightStream {
  const std::byte* next = nullptr;
  int lines = 0;  // of a portion

  void Ask() {
    for (int line = 0; line < lines; ++line) {
      __builtin_prefetch(next + line * 64, 0, 2);
    }
    next += lines * 64;
  }
};

// A tile's rows of a product: 16 from `first` on, or all if there are fewer. Off the grid of 16 the
// last tile starts before the first row that nobody has computed, `first_new`; what it computes a
// second time has the same bits.
struct RowTile {
  int first;
  int first_new;
};

inline RowTile RowTileAt(int index, int rows) {
  const int first_new = index * kTileRows;
  return {.first = std::max(0, std::min(first_new, rows - kTileRows)), .first_new = first_new};
}

// Sums are tiles 0 and 1, and 2 and 3 for the second row tile.
template <int kRowTiles>
inline void MultiplyChunk(const void* const (&input)[2],
                          std::ptrdiff_t stride,
                          const void* panel,
                          WeightStream& stream) {
  LoadTile<6>(panel, kPanelRowBytes);
  LoadTile<4>(input[0], stride);
  LoadTile<7>(static_cast<const std::byte*>(panel) + kTileRowBytes, kPanelRowBytes);
  if constexpr (kRowTiles == 2) {
    LoadTile<5>(input[1], stride);
  }
  stream.Ask();
  DotTile<0, 4, 6>();
  stream.Ask();
  DotTile<1, 4, 7>();
  stream.Ask();
  if constexpr (kRowTiles == 2) {
    DotTile<2, 5, 6>();
  }
  stream.Ask();
  if constexpr (kRowTiles == 2) {
    DotTile<3, 5, 7>();
  }
}

// The chunk of the last `words` words of k, fewer than 16.
template <int kRowTiles>
void MultiplyLastChunk(const AmxInput& args,
                       const std::uint16_t* const (&input)[2],
                       const std::uint32_t* panel,
                       int words) {
  const auto rest = static_cast<std::size_t>(words);
  PaddedPanel last_panel = {};
  std::memcpy(last_panel.words, panel, rest * kPanelRowBytes);
  PaddedInput last_input[kRowTiles] = {};
  const int rows = std::min(args.rows, kTileRows);
  for (int t = 0; t < kRowTiles; ++t) {
    for (int r = 0; r < rows; ++r) {
      std::memcpy(last_input[t].words[r], input[t] + r * args.input_stride, rest * 4);
    }
  }
  WeightStream nothing;
  MultiplyChunk<kRowTiles>({&last_input[0], &last_input[kRowTiles - 1]}, kTileRowBytes, &last_panel,
                           nothing);
}

template <int kRowTiles>
void MultiplyBlock(const AmxInput& args,
                   const RowTile* tiles,
                   const std::uint32_t* panel,
                   WeightStream& stream) {
  ZeroTile<0>();
  ZeroTile<1>();
  if constexpr (kRowTiles == 2) {
    ZeroTile<2>();
    ZeroTile<3>();
  }
  const std::uint16_t* input[2] = {args.input + tiles[0].first * args.input_stride,
                                   args.input + tiles[kRowTiles - 1].first * args.input_stride};
  for (int chunk = args.word_columns / kChunkWords; chunk > 0; --chunk) {
    MultiplyChunk<kRowTiles>({input[0], input[1]}, args.input_stride * 2, panel, stream);
    input[0] += kChunk;
    input[1] += kChunk;
    panel += kChunkWords * kPanelColumns;
  }
  if (const int words = args.word_columns % kChunkWords; words != 0) {
    MultiplyLastChunk<kRowTiles>(args, input, panel, words);
  }
}

// Where the sums of a block go: each tile of rows at its own place.
template <int kRowTiles>
inline void StoreBlock(float* const (&target)[2], std::ptrdiff_t stride_bytes) {
  StoreTile<0>(target[0], stride_bytes);
  StoreTile<1>(target[0] + kTileWords, stride_bytes);
  if constexpr (kRowTiles == 2) {
    StoreTile<2>(target[1], stride_bytes);
    StoreTile<3>(target[1] + kTileWords, stride_bytes);
  }
}

inline TileConfig MatMulTiles(int rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool holds_rows = tile < 6;
    config.rows[tile] =
        static_cast<std::uint8_t>(holds_rows ? std::min(rows, kTileRows) : kChunkWords);
    config.row_bytes[tile] = kTileRowBytes;
  }
  return config;
}

}  // namespace
}  // namespace baton
