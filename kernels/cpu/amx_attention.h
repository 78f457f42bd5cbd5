#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx_attention_step.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/tile_rows.h"
#include "kernels/cpu/vector_avx512bf16.h"

// Attention of queries over paged keys and values on tile registers.
//
// Work goes in steps of 128 keys, counted from key 0 of each segment, and inside a step in tiles of
// 16 rows, a row being one query head: scores of 16 keys at a time, online softmax of each row,
// values of 32 keys at a time. A row that sees fewer keys than others of its tile gives the rest
// the weight zero, and products of tiles do not mix rows: what happens to a row depends on that row
// alone.
//
// Slots that a row does not see may hold anything. Their scores are replaced before use. Values are
// copied, which puts the pairs of several blocks under each other, with zeros for what no row sees;
// if what only some rows see is not finite, so that zero times it would not be zero, the step runs
// query by query. Unnamed namespace: see vector_plain.h.
namespace baton {
namespace {

// One tile's part of a step.
struct RowTilePart {
  int first;     // row, of the tile or inside it
  int end;       // row
  int tile_row;  // the tile's first row
  int blocks;    // of 16 keys; 0 when none of the rows sees a key
  int chunks;    // of 32 keys
  float* scores;
  std::uint32_t* weights;
};

// `buffer`: which of the two buffers for scores and weights.
inline RowTilePart MakeRowTilePart(
    const AmxRows& rows, const AmxStep& step, int first, int end, int buffer) {
  int tokens = 0;
  for (int r = first; r < end; ++r) {
    tokens = std::max(tokens, std::min(rows.visible[r] - step.key, kAmxStepTokens));
  }
  return {.first = first,
          .end = end,
          .tile_row = first / kTileRows * kTileRows,
          .blocks = (tokens + 15) / 16,
          .chunks = (tokens + 31) / 32,
          .scores = rows.scores + buffer * kTileRows * kAmxStepTokens,
          .weights = rows.weights + buffer * kTileRows * kAmxStepPairs};
}

// Scores of four blocks from `block` on, or those that there are.
template <typename Ahead>
[[gnu::always_inline]] inline void ScorePart(
    const AmxRows& rows, const AmxStep& step, const RowTilePart& part, int block, Ahead& ahead) {
  WithConstant<4>(std::min(4, part.blocks - block), [&](auto constant) {
    ScoreBlocks<decltype(constant)::kValue>(rows, rows.query + part.tile_row * rows.query_words,
                                            step.keys + block, part.scores + block * 16, ahead);
  });
}

inline void WeighRow(const AmxRows& rows, const AmxStep& step, const RowTilePart& part, int row) {
  const float* scores = part.scores + (row - part.tile_row) * kAmxStepTokens;
  std::uint32_t* weights = part.weights + (row - part.tile_row) * kAmxStepPairs;
  const int own = std::clamp(rows.visible[row] - step.key, 0, kAmxStepTokens);
  if (own >= 32 * part.chunks) {
    AmxSoftmaxRow<false>(rows, row, scores, own, part.chunks, weights);
  } else {
    AmxSoftmaxRow<true>(rows, row, scores, own, part.chunks, weights);
  }
}

// Four tiles of dimensions from `dimension` on, or those that there are.
template <typename Ahead>
[[gnu::always_inline]] inline void AddPart(const AmxRows& rows,
                                           const RowTilePart& part,
                                           int dimension,
                                           Ahead& ahead) {
  WithConstant<4>(std::min(4, (rows.dimensions - dimension) / 16), [&](auto constant) {
    AddValueTiles<decltype(constant)::kValue>(
        rows, rows.acc + part.tile_row * rows.dimensions + dimension, part.weights,
        rows.values + dimension * kAmxStepPairs, part.chunks, ahead);
  });
}

inline void RunRowTile(
    const AmxRows& rows, const AmxStep& step, int first, int end, NextStep& next) {
  const RowTilePart part = MakeRowTilePart(rows, step, first, end, 0);
  for (int block = 0; block < part.blocks; block += 4) {
    ScorePart(rows, step, part, block, next);
  }
  for (int row = first; row < end && part.blocks > 0; ++row) {
    WeighRow(rows, step, part, row);
  }
  for (int d = 0; d < rows.dimensions && part.blocks > 0; d += 64) {
    AddPart(rows, part, d, next);
  }
}

// Between the rows of one tile's softmax: the scores of the next tile and the values of the one
// before, a quarter after every fourth row. Tiles and vectors work at the same time only if their
// instructions alternate.
inline void RunRowTiles(const AmxRows& rows, const AmxStep& step) {
  const NothingAhead nothing;
  const int tiles = (rows.count + kTileRows - 1) / kTileRows;
  const auto make = [&](int tile) {
    const int first = tile * kTileRows;
    return MakeRowTilePart(rows, step, first, std::min(rows.count, first + kTileRows), tile % 2);
  };
  RowTilePart part = make(0);
  for (int block = 0; block < part.blocks; block += 4) {
    ScorePart(rows, step, part, block, nothing);
  }
  RowTilePart before = {};
  for (int tile = 0; tile < tiles; ++tile) {
    const RowTilePart next = tile + 1 < tiles ? make(tile + 1) : RowTilePart{};
    int block = 0;
    int dimension = before.blocks > 0 ? 0 : rows.dimensions;
    const auto alternate = [&] {
      if (dimension < rows.dimensions) {
        AddPart(rows, before, dimension, nothing);
        dimension += 64;
      } else if (block < next.blocks) {
        ScorePart(rows, step, next, block, nothing);
        block += 4;
      }
    };
    for (int row = part.first; row < part.end && part.blocks > 0; ++row) {
      WeighRow(rows, step, part, row);
      if (row % 4 == 3) {
        alternate();
      }
    }
    while (dimension < rows.dimensions || block < next.blocks) {
      alternate();
    }
    before = part;
    part = next;
  }
  for (int d = 0; d < rows.dimensions && before.blocks > 0; d += 64) {
    AddPart(rows, before, d, nothing);
  }
}

// Rows [first, end) alone: what the others of their tiles have summed stays as it is.
inline void RunRowsAlone(
    const AmxRows& rows, const AmxStep& step, int first, int end, NextStep& next) {
  const auto bytes = static_cast<std::size_t>(rows.dimensions) * sizeof(float);
  for (int r = first; r < end;) {
    const int tile_row = r / kTileRows * kTileRows;
    const int tile_end = std::min(end, tile_row + kTileRows);
    float* const acc = rows.acc + tile_row * rows.dimensions;
    std::memcpy(rows.saved, acc, kTileRows * bytes);
    RunRowTile(rows, step, r, tile_end, next);
    for (int other = 0; other < kTileRows; ++other) {
      if (tile_row + other < r || tile_row + other >= tile_end) {
        std::memcpy(acc + other * rows.dimensions, rows.saved + other * rows.dimensions, bytes);
      }
    }
    r = tile_end;
  }
}

// The values of the step's first `tokens` keys.
inline bool CopyStep(const AttentionTile& tile,
                     const AmxRows& rows,
                     const AmxStep& step,
                     int tokens,
                     int first_checked,
                     NextStep& next) {
  return rows.count <= kTileRows ? CopyValues<kValueLinesOfFewRows>(rows, step, tile.head_dim,
                                                                    tokens, first_checked, next)
                                 : CopyValues<kValueLinesOfManyRows>(rows, step, tile.head_dim,
                                                                     tokens, first_checked, next);
}

inline void RunAmxStep(const AttentionTile& tile,
                       const AmxRows& rows,
                       const AmxStep& step,
                       NextStep& next) {
  if (CopyStep(tile, rows, step, step.seen_by_any, step.seen_by_all, next)) {
    if (rows.count <= kTileRows) {
      RunRowTile(rows, step, 0, rows.count, next);
    } else {
      RunRowTiles(rows, step);
    }
    return;
  }
  for (int q = 0; q < tile.queries; ++q) {
    const int first = q * tile.group;
    const int tokens = std::min(rows.visible[first] - step.key, kAmxStepTokens);
    if (tokens > 0) {
      CopyStep(tile, rows, step, tokens, tokens, next);
      RunRowsAlone(rows, step, first, first + tile.group, next);
    }
  }
}

// The queries of one head, turned for entry `entry`, and how far each row sees.
inline void StartEntry(const AttentionTile& tile, const AmxRows& rows, int entry) {
  const int half = tile.head_dim / 2;
  for (int q = 0; q < tile.queries; ++q) {
    const int delta = tile.delta[q * tile.entries + entry];
    const std::ptrdiff_t angle = static_cast<std::ptrdiff_t>(delta < 0 ? -delta : delta) * half;
    for (int h = 0; h < tile.group; ++h) {
      const int row = q * tile.group + h;
      rows.visible[row] = tile.visible_tokens[q * tile.entries + entry];
      RotateScaledRow<VectorAvx512Bf16>(tile.query + q * tile.query_stride + h * tile.head_dim,
                                        tile.cosines + angle, tile.sines + angle,
                                        delta < 0 ? -1.0f : 1.0f, tile.scale * kLog2E,
                                        tile.head_dim, rows.query + row * rows.query_words);
    }
  }
}

// Heads take turns with every step: what they read of a block lies side by side.
inline void AmxAttendEntry(const AttentionTile& tile, const AmxRows& rows, int entry) {
  int seen_by_all = tile.visible_tokens[entry];
  int seen_by_any = seen_by_all;
  for (int q = 1; q < tile.queries; ++q) {
    const int visible = tile.visible_tokens[q * tile.entries + entry];
    seen_by_all = std::min(seen_by_all, visible);
    seen_by_any = std::max(seen_by_any, visible);
  }
  for (int head = 0; head < tile.heads; ++head) {
    StartEntry(HeadOf(tile, head), RowsOfHead(rows, head), entry);
  }
  const auto keys_of = [&](int of_entry, int tokens) {
    return AttentionAhead{
        .blocks = tile.blocks[of_entry], .tokens = tokens, .heads = tile.heads, .pool = tile.pool};
  };
  const AttentionAhead behind =
      entry + 1 < tile.entries ? keys_of(entry + 1, tile.visible_tokens[entry + 1]) : tile.ahead;
  for (int key = 0; key < seen_by_any; key += kAmxStepTokens) {
    const int next_key = key + kAmxStepTokens;
    const bool last = next_key >= seen_by_any;
    NextStep next(last ? behind : keys_of(entry, seen_by_any), last ? 0 : next_key,
                  tile.block_stride_bytes, tile.head_dim);
    for (int head = 0; head < tile.heads; ++head) {
      const AttentionTile part = HeadOf(tile, head);
      const AmxRows own_rows = RowsOfHead(rows, head);
      const AmxStep step =
          MakeAmxStep(part, own_rows, tile.blocks[entry], key, seen_by_all, seen_by_any);
      RunAmxStep(part, own_rows, step, next);
    }
  }
}

inline TileConfig AttentionTiles(int rows) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<std::uint8_t>(t < 5 ? std::min(rows, kTileRows) : kTileRows);
    config.row_bytes[t] = kTileRowBytes;
  }
  return config;
}

// The rows of one head, finished.
inline void StoreHead(const AttentionTile& tile, const AmxRows& rows) {
  using V = VectorAvx512Bf16;
  for (int r = 0; r < rows.count; ++r) {
    const float* acc = rows.acc + r * rows.dimensions;
    std::uint16_t* out =
        tile.output + r / tile.group * tile.output_stride + r % tile.group * tile.head_dim;
    const V::Float inverse = V::Set(1.0f / V::ReduceAdd(V::Load(rows.sums + r * 16)));
    ForLanes<V>(tile.head_dim, [&](int i, int n) {
      // Adding zero turns -0 into 0.
      V::StoreBFloat16First(out + i, V::Add(V::Multiply(V::Load(acc + i), inverse), V::Zero()), n);
    });
  }
}

inline void AmxAttendTile(const AttentionTile& tile) {
  const AmxRows rows =
      CarveAmxScratch(tile.scratch, tile.queries * tile.group, tile.heads, tile.head_dim);
  // Query, acc and sums come first.
  std::memset(tile.scratch, 0,
              static_cast<std::size_t>(rows.maxima - tile.scratch) * sizeof(float));
  std::fill_n(rows.maxima, tile.heads * RoundUpTo16(rows.count), kLowest);
  {
    const TileScope scope(AttentionTiles(rows.count));
    for (int entry = 0; entry < tile.entries; ++entry) {
      AmxAttendEntry(tile, rows, entry);
    }
  }
  for (int head = 0; head < tile.heads; ++head) {
    StoreHead(HeadOf(tile, head), RowsOfHead(rows, head));
  }
}

}  // namespace
}  // namespace baton
