#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/amx_blocks.h"
#include "kernels/cpu/amx_compact.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/tile_rows.h"
#include "kernels/cpu/vector_avx512bf16.h"

// Rows times panels of packed weights, all rows of one panel after the other.
//
// Up to about 150 rows the way of the weights from memory is the bound, so that everything else has
// to hide behind it. Beyond, it is the second cache, which brings activations and weights and takes
// the sums: a product that is only there to be activated does not leave the first cache. Unnamed
// namespace: see vector_plain.h.
namespace baton {
namespace {

// Activations of rows that take turns with every panel: they have to stay in the second cache, of
// which a core of the processors with tile registers has 2 MiB. At 512 rows of 1,536 values, 1.5
// MiB, two passes over the weights take 4/5 of the time of one.
constexpr int kInputBytes = 800 << 10;

// Calls function(Constant<lines>{}) for a power of two of at least `lines` of at most a portion.
template <typename Function>
void WithPortion(int lines, const Function& function) {
  static_assert(kPortionLines == 8);
  if (lines > 4) {
    function(Constant<8>{});
  } else if (lines > 2) {
    function(Constant<4>{});
  } else if (lines == 2) {
    function(Constant<2>{});
  } else {
    function(Constant<1>{});
  }
}

// Calls run(row_tiles, lines, first_tile) for each block of a panel, with the lines of weights to
// ask for in each portion as a constant: the panel itself shortly ahead where there is one block,
// else each block's share of the next panel, until that is complete.
template <typename Run>
void ForBlocks(int rows, const Run& run) {
  const int row_tiles = (rows + kTileRows - 1) / kTileRows;
  const int blocks = (row_tiles + 1) / 2;
  WithPortion((kPortionLines + blocks - 1) / blocks, [&](auto portion) {
    constexpr int kLines = decltype(portion)::kValue;
    for (int tile = 0; tile < row_tiles; tile += 2) {
      const bool complete = tile / 2 * kLines >= kPortionLines;
      if (tile + 1 == row_tiles) {
        run(Constant<1>{}, Constant<kLines>{}, tile);
      } else if (complete) {
        run(Constant<2>{}, Constant<0>{}, tile);
      } else {
        run(Constant<2>{}, Constant<kLines>{}, tile);
      }
    }
  });
}

// Where to start asking for weights while the first block of `panel` runs.
inline const std::byte* WeightsAhead(const std::uint32_t* panel, int rows, int word_columns) {
  const std::ptrdiff_t panel_bytes = word_columns * std::ptrdiff_t{kPanelRowBytes};
  return reinterpret_cast<const std::byte*>(panel) +
         (rows <= 2 * kTileRows ? kPrefetchBytes : panel_bytes);
}

// Puts or adds a row of sums into the output.
inline void FinishSums(const MatMulPanels& args, const float* sums, int row, int column) {
  using V = VectorAvx512Bf16;
  float* out = args.output + row * args.output_stride + column;
  for (int i = 0; i < kPanelColumns && column + i < args.columns; i += V::kLanes) {
    const int lanes = args.columns - column - i;
    const V::Float x = V::Load(sums + i);
    V::StoreFirst(out + i, args.accumulate ? V::Add(V::LoadFirst(out + i, lanes), x) : x, lanes);
  }
}

// Rows that are one block: as many read compact weights, for whom unpacking fits into the time that
// the weights are on their way.
constexpr int kCompactRows = 2 * kTileRows;

// Calls function(Constant<row tiles>{}) for the one block that `rows` rows are.
template <typename Function>
void WithRowTiles(int rows, const Function& function) {
  if (rows <= kTileRows) {
    function(Constant<1>{});
  } else {
    function(Constant<2>{});
  }
}

// Takes the sums of a block and a panel to the output.
template <int kRowTiles>
[[gnu::always_inline]] inline void FinishBlock(const MatMulPanels& args,
                                               const RowTile (&tiles)[2],
                                               int column) {
  if (!args.accumulate && args.columns - column >= kPanelColumns) {
    float* const output = args.output + column;
    StoreBlock<kRowTiles>({output + tiles[0].first * args.output_stride,
                           output + tiles[1].first * args.output_stride},
                          args.output_stride * 4);
    return;
  }
  BlockSums sums;
  StoreBlock<kRowTiles>(sums);
  for (int t = 0; t < kRowTiles; ++t) {
    const int end = std::min(args.rows, tiles[t].first + kTileRows);
    for (int row = tiles[t].first_new; row < end; ++row) {
      FinishSums(args, sums.values[t * kTileRows + row - tiles[t].first], row, column);
    }
  }
}

// kRowTiles tiles of rows times one panel.
template <int kRowTiles, int kLines>
void MatMulBlock(const MatMulPanels& args, int first_tile, int column, WeightStream& stream) {
  const AmxInput input = {args.input, args.input_stride, args.rows, args.word_columns};
  const RowTile tiles[2] = {RowTileAt(first_tile, args.rows),
                            RowTileAt(first_tile + kRowTiles - 1, args.rows)};
  MultiplyBlock<kRowTiles, kLines>(
      input, tiles, args.panels + std::ptrdiff_t{column} * args.word_columns, stream, NoStep());
  FinishBlock<kRowTiles>(args, tiles, column);
}

inline void MatMulRows(const MatMulPanels& args) {
  const TileScope scope(MatMulTiles(args.rows));
  for (int column = 0; column < args.columns; column += kPanelColumns) {
    const std::uint32_t* panel = args.panels + std::ptrdiff_t{column} * args.word_columns;
    WeightStream stream{.next = WeightsAhead(panel, args.rows, args.word_columns)};
    ForBlocks(args.rows, [&](auto row_tiles, auto lines, int first_tile) {
      MatMulBlock<decltype(row_tiles)::kValue, decltype(lines)::kValue>(args, first_tile, column,
                                                                        stream);
    });
  }
}

[[gnu::noinline]] inline void CompactMatMulRows(const MatMulPanels& args) {
  const TileScope scope(MatMulTiles(args.rows));
  const AmxInput input = {args.input, args.input_stride, args.rows, args.word_columns};
  const int panels = (args.columns + kPanelColumns - 1) / kPanelColumns;
  CompactStream stream(args.compact, std::ptrdiff_t{panels} * (args.word_columns / kChunkWords));
  WithRowTiles(args.rows, [&](auto row_tiles) {
    constexpr int kRowTiles = decltype(row_tiles)::kValue;
    const RowTile tiles[2] = {RowTileAt(0, args.rows), RowTileAt(kRowTiles - 1, args.rows)};
    for (int panel = 0; panel < panels; ++panel) {
      MultiplyCompactBlock<kRowTiles>(input, tiles, stream);
      FinishBlock<kRowTiles>(args, tiles, panel * kPanelColumns);
    }
  });
}

inline void AmxMatMulPanels(const MatMulPanels& args) {
  if (args.compact.data != nullptr && args.rows <= kCompactRows) {
    CompactMatMulRows(args);
    return;
  }
  constexpr int kBlockRows = 2 * kTileRows;
  const int most = std::max(1, kInputBytes / (args.word_columns * 4 * kBlockRows)) * kBlockRows;
  const int groups = (args.rows + most - 1) / most;
  const int rows = (args.rows + groups * kBlockRows - 1) / (groups * kBlockRows) * kBlockRows;
  MatMulPanels group = args;
  for (int row = 0; row < args.rows; row += rows) {
    group.input = args.input + row * args.input_stride;
    group.output = args.output + row * args.output_stride;
    group.rows = std::min(rows, args.rows - row);
    MatMulRows(group);
  }
}

struct GatedSums {
  BlockSums gate;
  BlockSums up;
};

// kRowTiles tiles of rows times a panel of gates and one of what they multiply.
template <int kRowTiles, int kLines, typename Pending>
void GatedMatMulBlock(const GatedMatMulPanels& args,
                      int first_tile,
                      int panel,
                      WeightStream (&streams)[2],
                      GatedSums& sums,
                      Pending& pending) {
  const AmxInput input = {args.input, args.input_stride, args.rows, args.word_columns};
  const RowTile tiles[2] = {RowTileAt(first_tile, args.rows),
                            RowTileAt(first_tile + kRowTiles - 1, args.rows)};
  const std::ptrdiff_t offset = panel * std::ptrdiff_t{kPanelColumns} * args.word_columns;
  if constexpr (kLines == kPortionLines) {
    // The only block of its panel waits for weights, not for units.
    MultiplyBlock<kRowTiles, kLines>(input, tiles, args.gate_panels + offset, streams[0], NoStep());
  } else {
    MultiplyBlock<kRowTiles, kLines>(input, tiles, args.gate_panels + offset, streams[0],
                                     [&] { pending.Step(); });
  }
  pending.Finish();
  StoreBlock<kRowTiles>(sums.gate);
  MultiplyBlock<kRowTiles, kLines>(input, tiles, args.up_panels + offset, streams[1], NoStep());
  StoreBlock<kRowTiles>(sums.up);
  pending.Start(tiles, kRowTiles, args.rows, panel * kPanelColumns);
}

template <typename Pending>
[[gnu::noinline]] void CompactGatedMatMulRows(const GatedMatMulPanels& args,
                                              GatedSums& sums,
                                              Pending& pending) {
  const AmxInput input = {args.input, args.input_stride, args.rows, args.word_columns};
  const std::ptrdiff_t chunks = std::ptrdiff_t{args.panels} * (args.word_columns / kChunkWords);
  CompactStream gate(args.compact_gate, chunks);
  CompactStream up(args.compact_up, chunks);
  WithRowTiles(args.rows, [&](auto row_tiles) {
    constexpr int kRowTiles = decltype(row_tiles)::kValue;
    const RowTile tiles[2] = {RowTileAt(0, args.rows), RowTileAt(kRowTiles - 1, args.rows)};
    for (int panel = 0; panel < args.panels; ++panel) {
      MultiplyCompactBlock<kRowTiles>(input, tiles, gate);
      pending.Finish();
      StoreBlock<kRowTiles>(sums.gate);
      MultiplyCompactBlock<kRowTiles>(input, tiles, up);
      StoreBlock<kRowTiles>(sums.up);
      pending.Start(tiles, kRowTiles, args.rows, panel * kPanelColumns);
    }
  });
  pending.Finish();
}

inline void AmxGatedMatMulPanels(const GatedMatMulPanels& args) {
  using V = VectorAvx512Bf16;
  const TileScope scope(MatMulTiles(args.rows));
  GatedSums sums;
  const auto finish = [&](int sum_row, int row, int column) {
    const float* gate = sums.gate.values[sum_row];
    const float* up = sums.up.values[sum_row];
    V::StoreBFloat16Twice(args.output + row * args.output_stride + column,
                          V::Multiply(Silu<V>(V::Load(gate)), V::Load(up)),
                          V::Multiply(Silu<V>(V::Load(gate + V::kLanes)), V::Load(up + V::kLanes)));
  };
  PendingBlock pending(finish);
  if (args.compact_gate.data != nullptr && args.rows <= kCompactRows) {
    CompactGatedMatMulRows(args, sums, pending);
    return;
  }
  for (int panel = 0; panel < args.panels; ++panel) {
    const std::ptrdiff_t offset = panel * std::ptrdiff_t{kPanelColumns} * args.word_columns;
    WeightStream streams[2] = {
        {.next = WeightsAhead(args.gate_panels + offset, args.rows, args.word_columns)},
        {.next = WeightsAhead(args.up_panels + offset, args.rows, args.word_columns)}};
    ForBlocks(args.rows, [&](auto row_tiles, auto lines, int first_tile) {
      GatedMatMulBlock<decltype(row_tiles)::kValue, decltype(lines)::kValue>(
          args, first_tile, panel, streams, sums, pending);
    });
  }
  pending.Finish();
}

}  // namespace
}  // namespace baton
