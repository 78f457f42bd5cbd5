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

constexpr int kChunkWords = 16;  // 32 values of k in one product of tiles
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

  template <int kLines>
  void Ask() {
#pragma GCC unroll 8
    for (int line = 0; line < kLines; ++line) {
      __builtin_prefetch(next + line * 64, 0, 2);
    }
    next += kLines * 64;
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

// One row tile's 32 values of k and another's `to_second` bytes behind them.
struct InputChunk {
  const std::byte* first;
  std::ptrdiff_t to_second;
  std::ptrdiff_t stride_bytes;
};

inline InputChunk FirstChunk(const AmxInput& args, const RowTile (&tiles)[2]) {
  const std::ptrdiff_t stride_bytes = args.input_stride * 2;
  return {.first = reinterpret_cast<const std::byte*>(args.input) + tiles[0].first * stride_bytes,
          .to_second = (tiles[1].first - tiles[0].first) * stride_bytes,
          .stride_bytes = stride_bytes};
}

// Sums are tiles 0 and 1, and 2 and 3 for the second row tile.
template <int kRowTiles, int kLines>
[[gnu::always_inline]] inline void MultiplyChunk(const InputChunk& input,
                                                 const std::byte* panel,
                                                 WeightStream& stream) {
  LoadTile<6>(panel, kPanelRowBytes);
  LoadTile<4>(input.first, input.stride_bytes);
  LoadTile<7>(panel + kTileRowBytes, kPanelRowBytes);
  if constexpr (kRowTiles == 2) {
    LoadTile<5>(input.first + input.to_second, input.stride_bytes);
  }
  stream.Ask<kLines>();
  DotTile<0, 4, 6>();
  stream.Ask<kLines>();
  DotTile<1, 4, 7>();
  stream.Ask<kLines>();
  if constexpr (kRowTiles == 2) {
    DotTile<2, 5, 6>();
  }
  stream.Ask<kLines>();
  if constexpr (kRowTiles == 2) {
    DotTile<3, 5, 7>();
  }
}

// The chunk of the last `words` words of k, fewer than 16.
template <int kRowTiles>
void MultiplyLastChunk(const InputChunk& input, int rows, const std::byte* panel, int words) {
  const auto rest = static_cast<std::size_t>(words);
  PaddedPanel last_panel = {};
  std::memcpy(last_panel.words, panel, rest * kPanelRowBytes);
  PaddedInput last_input[kRowTiles] = {};
  for (int t = 0; t < kRowTiles; ++t) {
    for (int r = 0; r < std::min(rows, kTileRows); ++r) {
      std::memcpy(last_input[t].words[r],
                  input.first + t * input.to_second + r * input.stride_bytes, rest * 4);
    }
  }
  WeightStream nothing;
  MultiplyChunk<kRowTiles, 0>({.first = reinterpret_cast<const std::byte*>(last_input),
                               .to_second = sizeof last_input[0],
                               .stride_bytes = kTileRowBytes},
                              reinterpret_cast<const std::byte*>(&last_panel), nothing);
}

// What is left to do with the sums of a block, row by row, while the next block runs: tiles and
// vectors are different units, which only work at the same time if their instructions alternate.
// FinishRow is called with (row of the sums, row of the output, column).
template <typename FinishRow>
class PendingBlock {
 public:
  explicit PendingBlock(const FinishRow& finish) : finish_(finish) {}

  // REQUIRES: nothing is left of the block before.
  void Start(const RowTile (&tiles)[2], int row_tiles, int rows, int column) {
    column_ = column;
    for (int t = 0; t < row_tiles; ++t) {
      const int skipped = tiles[t].first_new - tiles[t].first;
      parts_[t] = {.sum_row = t * kTileRows + skipped,
                   .row = tiles[t].first_new,
                   .count = std::min(kTileRows, rows - tiles[t].first) - skipped};
    }
  }

  // With each chunk of the next block.
  [[gnu::always_inline]] void Step() {
    Part& part = parts_[parts_[0].count > 0 ? 0 : 1];
    for (int i = 0; i < kRowsOfStep && part.count > 0; ++i) {
      finish_(part.sum_row++, part.row++, column_);
      --part.count;
    }
  }

  void Finish() {
    while (parts_[0].count > 0 || parts_[1].count > 0) {
      Step();
    }
  }

 private:
  // Two of 32 rows with each of 18 chunks, as many as 576 columns have.
  static constexpr int kRowsOfStep = 2;

  struct Part {
    int sum_row = 0;
    int row = 0;
    int count = 0;
  };

  const FinishRow& finish_;
  Part parts_[2];
  int column_ = 0;
};

struct NoStep {
  void operator()() const {}
};

// The sums of a block before its first chunk.
template <int kRowTiles>
[[gnu::always_inline]] inline void ZeroBlock() {
  ZeroTile<0>();
  ZeroTile<1>();
  if constexpr (kRowTiles == 2) {
    ZeroTile<2>();
    ZeroTile<3>();
  }
}

// kLines: of weights to ask for in a portion. Calls step() after each chunk. Not inlined: inside a
// larger function g++ 12 keeps its pointers in memory.
template <int kRowTiles, int kLines, typename Step>
[[gnu::noinline]] void MultiplyBlock(const AmxInput& args,
                                     const RowTile (&tiles)[2],
                                     const std::uint32_t* panel,
                                     WeightStream& stream,
                                     const Step& step) {
  ZeroBlock<kRowTiles>();
  InputChunk input = FirstChunk(args, tiles);
  const auto* weights = reinterpret_cast<const std::byte*>(panel);
  const int words = args.word_columns;
  WeightStream asked = stream;  // in registers, whatever the tiles' memory is taken for
  for (int chunk = words / kChunkWords; chunk > 0; --chunk) {
    MultiplyChunk<kRowTiles, kLines>(input, weights, asked);
    step();
    input.first += kTileRowBytes;
    weights += kChunkWords * kPanelRowBytes;
  }
  stream.next = asked.next;
  if (words % kChunkWords != 0) {
    MultiplyLastChunk<kRowTiles>(input, args.rows, weights, words % kChunkWords);
  }
}

// The sums of a block where they are finished.
struct alignas(64) BlockSums {
  float values[2 * kTileRows][kPanelColumns];
};

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

template <int kRowTiles>
inline void StoreBlock(BlockSums& sums) {
  StoreBlock<kRowTiles>({sums.values[0], sums.values[kTileRows]}, kPanelRowBytes);
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
