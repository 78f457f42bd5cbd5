#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/constant_dispatch.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/tile_rows.h"

// Attention of a few queries over paged keys and values, one key/value head after the other.
//
// Work goes in steps of 64 keys (4 blocks), counted from key 0 of each segment: scores, online
// softmax per row, values. Steps that all queries see in full run for the whole tile, so that keys
// are read from memory once for all of it; the rest runs query by query, and only there is anything
// masked. What happens to a row in a step depends on that row and on the number of keys it sees
// there, never on the tile. A row is one query head.
//
// Slots that a query does not see may hold anything: their scores are replaced before use, and
// their values are not read, or cleared where the last visible token shares a word with an
// invisible one. See vector_plain.h for why the namespace is unnamed.
namespace baton {
namespace {

constexpr int kStepTokens = 64;
constexpr int kStepBlocks = kStepTokens / 16;
constexpr int kStepWords = kStepTokens / 2;  // token pairs
constexpr float kLowest =
    -3.40282347e+38f;  // the maximum before any key: finite, so that differences are numbers

// Rows (query heads) of one tile: enough to read each key from the cache once for many, few enough
// to keep accumulators and scores in the first cache.
constexpr int kAttentionTileRows = 24;

// Where a tile keeps its rows between steps.
struct AttentionRows {
  float* acc;              // [rows, acc_stride] weighted values so far
  float* scores;           // [rows, kStepTokens]
  float* sums;             // [rows, 16] weights so far, by lane
  float* maxima;           // [rows]
  float* rescale;          // [rows] factor for what was summed before this step
  std::uint32_t* query;    // [rows, D/2] turned and scaled
  std::uint32_t* weights;  // [rows, kStepWords] bf16 of adjacent keys
  int acc_stride;
};

template <typename T>
T* Take(float*& scratch, int count) {
  float* first = scratch;
  scratch += (count + 15) / 16 * 16;
  return reinterpret_cast<T*>(first);
}

inline AttentionRows CarveScratch(float* scratch, int rows, int head_dim) {
  AttentionRows r;
  r.acc_stride = (head_dim + 15) / 16 * 16;
  r.acc = Take<float>(scratch, rows * r.acc_stride);
  r.scores = Take<float>(scratch, rows * kStepTokens);
  r.sums = Take<float>(scratch, rows * 16);
  r.maxima = Take<float>(scratch, rows);
  r.rescale = Take<float>(scratch, rows);
  r.query = Take<std::uint32_t>(scratch, rows * (head_dim / 2));
  r.weights = Take<std::uint32_t>(scratch, rows * kStepWords);
  return r;
}

inline std::size_t AttentionScratchFloats(int rows, int /*heads*/, int head_dim) {
  const auto round_up = [](std::size_t floats) { return (floats + 15) / 16 * 16; };
  const auto r = static_cast<std::size_t>(rows);
  const auto d = static_cast<std::size_t>(head_dim);
  // As CarveScratch takes them.
  return r * round_up(d) + r * kStepTokens + r * 16 + 2 * round_up(r) + round_up(r * (d / 2)) +
         round_up(r * kStepWords);
}

// The part of a tile that is one key/value head's.
inline AttentionTile HeadOf(const AttentionTile& tile, int head) {
  AttentionTile part = tile;
  part.query += head * tile.group * tile.head_dim;
  part.output += head * tile.group * tile.head_dim;
  part.pool += static_cast<std::size_t>(head) * HeadBytes(tile.head_dim);
  part.heads = 1;
  return part;
}

// The blocks of one step as this head sees them.
struct AttentionStep {
  const std::uint32_t* keys[kStepBlocks];    // [D/2, 16] words
  const std::uint32_t* values[kStepBlocks];  // [8, D] words
  int tokens;                                // visible, [1, kStepTokens]
};

inline AttentionStep MakeStep(const AttentionTile& tile, const BlockId* blocks, int tokens) {
  AttentionStep step = {};
  step.tokens = tokens;
  for (int b = 0; b * 16 < tokens; ++b) {
    const std::byte* block = tile.pool + blocks[b].value() * tile.block_stride_bytes;
    step.keys[b] = reinterpret_cast<const std::uint32_t*>(block);
    step.values[b] = reinterpret_cast<const std::uint32_t*>(block + KeyBytes(tile.head_dim));
  }
  return step;
}

// Scores of rows [row, row + kRows) for kVectors vectors of keys.
template <typename V, int kRows, int kVectors>
void ScoreTile(const AttentionRows& rows,
               int row,
               const std::uint32_t* const* keys,
               int words,
               float* scores) {
  typename V::Float acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = V::Zero();
    }
  }
  const std::uint32_t* query = rows.query + row * words;
  for (int k = 0; k < words; ++k) {
    typename V::Pairs key[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      key[v] = V::Expand(V::LoadWords(keys[v] + k * 16));
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const typename V::Pairs q = V::Expand(V::SetWord(query[r * words + k]));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = V::Dot(acc[r][v], key[v], q);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      V::Store(scores + r * kStepTokens + v * V::kLanes, acc[r][v]);
    }
  }
}

template <typename V>
void ScoreRows(
    const AttentionRows& rows, int first, int count, const AttentionStep& step, int words) {
  constexpr int kVectorsPerBlock = 16 / V::kLanes;
  const int vectors = (step.tokens + 15) / 16 * kVectorsPerBlock;
  const std::uint32_t* keys[kStepTokens / V::kLanes];
  for (int v = 0; v < vectors; ++v) {
    keys[v] = step.keys[v / kVectorsPerBlock] + v % kVectorsPerBlock * V::kLanes;
  }
  for (int r = first; r < first + count;) {
    const int tile_rows = BalancedTile(first + count - r, V::kAttentionRows);
    for (int v = 0; v < vectors; v += V::kAttentionVectors) {
      const int tile_vectors =
          vectors - v < V::kAttentionVectors ? vectors - v : V::kAttentionVectors;
      float* scores = rows.scores + r * kStepTokens + v * V::kLanes;
      WithConstant<V::kAttentionRows>(tile_rows, [&](auto row_constant) {
        WithConstant<V::kAttentionVectors>(tile_vectors, [&](auto vector_constant) {
          ScoreTile<V, decltype(row_constant)::kValue, decltype(vector_constant)::kValue>(
              rows, r, keys + v, words, scores);
        });
      });
    }
    r += tile_rows;
  }
}

template <typename V>
int VisibleLanes(int tokens, int vector) {
  const int lanes = tokens - vector * V::kLanes;
  return lanes > 0 ? lanes : 0;
}

// Turns the scores of one row into weights 2^(score - maximum) and brings its running maximum and
// sum up to date.
template <typename V>
void SoftmaxRow(const AttentionRows& rows, int row, int tokens) {
  constexpr int kVectors = kStepTokens / V::kLanes;
  float* scores = rows.scores + row * kStepTokens;
  typename V::Float score[kVectors];
  typename V::Float maximum = V::Set(rows.maxima[row]);
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    score[v] = V::Load(scores + v * V::kLanes);
    if (tokens < kStepTokens) {
      score[v] = V::SelectFirst(score[v], V::Set(kLowest), VisibleLanes<V>(tokens, v));
    }
    maximum = V::Max(maximum, score[v]);
  }
  const float new_maximum = V::ReduceMax(maximum);
  typename V::Float rescale = V::Set(1.0f);
  if (new_maximum != rows.maxima[row]) {
    rescale = V::Exp2(V::Set(rows.maxima[row] - new_maximum));
  }
  rows.maxima[row] = new_maximum;
  float rescale_lanes[V::kLanes];
  V::Store(rescale_lanes, rescale);
  rows.rescale[row] = rescale_lanes[0];

  auto* weights = reinterpret_cast<std::uint16_t*>(rows.weights + row * kStepWords);
  typename V::Float sum = V::Multiply(V::Load(rows.sums + row * 16), rescale);
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    typename V::Float weight = V::Exp2(V::Subtract(score[v], V::Set(new_maximum)));
    if (tokens < kStepTokens) {
      weight = V::SelectFirst(weight, V::Zero(), VisibleLanes<V>(tokens, v));
    }
    sum = V::Add(sum, weight);
    V::StoreBFloat16First(weights + v * V::kLanes, weight, V::kLanes);
  }
  V::Store(rows.sums + row * 16, sum);
}

// acc += weights * values for one pair of tokens.
template <typename V, int kRows, int kVectors, bool kPartial>
[[gnu::always_inline]] inline void AddPair(typename V::Float (&acc)[kRows][kVectors],
                                           const std::uint32_t* weights,
                                           const std::uint32_t* values,
                                           typename V::Words keep,
                                           int lanes) {
  typename V::Pairs value[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const typename V::Words loaded = kPartial ? V::LoadWordsFirst(values + v * V::kLanes, lanes)
                                              : V::LoadWords(values + v * V::kLanes);
    value[v] = V::Expand(V::And(loaded, keep));
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const typename V::Pairs weight = V::Expand(V::SetWord(weights[r * kStepWords]));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = V::Dot(acc[r][v], value[v], weight);
    }
  }
}

// acc = acc * rescale + weights * values for rows [row, row + kRows) and kVectors vectors of
// dimensions, of which the last has `lanes` lanes when kPartial.
template <typename V, int kRows, int kVectors, bool kPartial>
void ValueTile(const AttentionRows& rows,
               int row,
               const AttentionStep& step,
               int head_dim,
               int dimension,
               int lanes) {
  typename V::Float acc[kRows][kVectors];
  float* const out = rows.acc + row * rows.acc_stride + dimension;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = V::Multiply(V::Load(out + r * rows.acc_stride + v * V::kLanes),
                              V::Set(rows.rescale[row + r]));
    }
  }
  const std::uint32_t* weights = rows.weights + row * kStepWords;
  const int pairs = step.tokens / 2;
  for (int pair = 0; pair < pairs; pair += 8) {
    const std::uint32_t* values = step.values[pair / 8] + dimension;
    const int end = pairs - pair < 8 ? pairs : pair + 8;
    for (int p = pair; p < end; ++p) {
      AddPair<V, kRows, kVectors, kPartial>(acc, weights + p, values, V::SetWord(0xffffffffu),
                                            lanes);
      values += head_dim;
    }
  }
  if (step.tokens % 2 != 0) {
    // The odd half of the last word is a token that this row does not see.
    const std::uint32_t* values = step.values[pairs / 8] + pairs % 8 * head_dim + dimension;
    AddPair<V, kRows, kVectors, kPartial>(acc, weights + pairs, values, V::SetWord(0x0000ffffu),
                                          lanes);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      V::Store(out + r * rows.acc_stride + v * V::kLanes, acc[r][v]);
    }
  }
}

template <typename V>
void ValueRows(
    const AttentionRows& rows, int first, int count, const AttentionStep& step, int head_dim) {
  const int whole_vectors = head_dim / V::kLanes;
  const int rest = head_dim % V::kLanes;
  for (int r = first; r < first + count;) {
    const int tile_rows = BalancedTile(first + count - r, V::kAttentionRows);
    WithConstant<V::kAttentionRows>(tile_rows, [&](auto row_constant) {
      constexpr int kRows = decltype(row_constant)::kValue;
      for (int v = 0; v < whole_vectors;) {
        const int tile_vectors =
            whole_vectors - v < V::kAttentionVectors ? whole_vectors - v : V::kAttentionVectors;
        WithConstant<V::kAttentionVectors>(tile_vectors, [&](auto vector_constant) {
          ValueTile<V, kRows, decltype(vector_constant)::kValue, false>(rows, r, step, head_dim,
                                                                        v * V::kLanes, V::kLanes);
        });
        v += tile_vectors;
      }
      if (rest != 0) {
        ValueTile<V, kRows, 1, true>(rows, r, step, head_dim, whole_vectors * V::kLanes, rest);
      }
    });
    r += tile_rows;
  }
}

template <typename V>
void RunStep(
    const AttentionRows& rows, int first, int count, const AttentionStep& step, int head_dim) {
  ScoreRows<V>(rows, first, count, step, head_dim / 2);
  for (int r = first; r < first + count; ++r) {
    SoftmaxRow<V>(rows, r, step.tokens);
  }
  ValueRows<V>(rows, first, count, step, head_dim);
}

// The queries of the tile, turned for entry `entry`. The factor takes scores to base 2.
template <typename V>
void RotateQueries(const AttentionTile& tile, const AttentionRows& rows, int entry) {
  const int half = tile.head_dim / 2;
  for (int q = 0; q < tile.queries; ++q) {
    const int delta = tile.delta[q * tile.entries + entry];
    const std::ptrdiff_t angle = static_cast<std::ptrdiff_t>(delta < 0 ? -delta : delta) * half;
    for (int h = 0; h < tile.group; ++h) {
      RotateScaledRow<V>(tile.query + q * tile.query_stride + h * tile.head_dim,
                         tile.cosines + angle, tile.sines + angle, delta < 0 ? -1.0f : 1.0f,
                         tile.scale * kLog2E, tile.head_dim,
                         rows.query + (q * tile.group + h) * half);
    }
  }
}

template <typename V>
void AttendEntry(const AttentionTile& tile, const AttentionRows& rows, int entry) {
  int seen_by_all = tile.visible_tokens[entry];
  int seen_by_any = seen_by_all;
  for (int q = 1; q < tile.queries; ++q) {
    const int visible = tile.visible_tokens[q * tile.entries + entry];
    seen_by_all = visible < seen_by_all ? visible : seen_by_all;
    seen_by_any = visible > seen_by_any ? visible : seen_by_any;
  }
  if (seen_by_any == 0) {
    return;
  }
  RotateQueries<V>(tile, rows, entry);
  const BlockId* blocks = tile.blocks[entry];
  const int common = seen_by_all / kStepTokens * kStepTokens;
  for (int key = 0; key < common; key += kStepTokens) {
    RunStep<V>(rows, 0, tile.queries * tile.group, MakeStep(tile, blocks + key / 16, kStepTokens),
               tile.head_dim);
  }
  for (int q = 0; q < tile.queries; ++q) {
    const int visible = tile.visible_tokens[q * tile.entries + entry];
    for (int key = common; key < visible; key += kStepTokens) {
      const int tokens = visible - key < kStepTokens ? visible - key : kStepTokens;
      RunStep<V>(rows, q * tile.group, tile.group, MakeStep(tile, blocks + key / 16, tokens),
                 tile.head_dim);
    }
  }
}

template <typename V>
void AttendHead(const AttentionTile& tile) {
  const int count = tile.queries * tile.group;
  const AttentionRows rows = CarveScratch(tile.scratch, count, tile.head_dim);
  for (int i = 0; i < count * rows.acc_stride; ++i) {
    rows.acc[i] = 0;
  }
  for (int i = 0; i < count * 16; ++i) {
    rows.sums[i] = 0;
  }
  for (int r = 0; r < count; ++r) {
    rows.maxima[r] = kLowest;
  }
  for (int entry = 0; entry < tile.entries; ++entry) {
    AttendEntry<V>(tile, rows, entry);
  }
  for (int r = 0; r < count; ++r) {
    const float* acc = rows.acc + r * rows.acc_stride;
    std::uint16_t* out =
        tile.output + r / tile.group * tile.output_stride + r % tile.group * tile.head_dim;
    const typename V::Float inverse = V::Set(1.0f / V::ReduceAdd(V::Load(rows.sums + r * 16)));
    ForLanes<V>(tile.head_dim, [&](int i, int n) {
      // Adding zero turns -0 into 0.
      V::StoreBFloat16First(out + i, V::Add(V::Multiply(V::Load(acc + i), inverse), V::Zero()), n);
    });
  }
}

template <typename V>
void AttendTile(const AttentionTile& tile) {
  for (int head = 0; head < tile.heads; ++head) {
    AttendHead<V>(HeadOf(tile, head));
  }
}

}  // namespace
}  // namespace baton
