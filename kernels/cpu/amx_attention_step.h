#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/constant_dispatch.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/tile_attention.h"
#include "kernels/cpu/vector_avx512bf16.h"

// What attention on tile registers keeps and what it does in one step of 128 keys: values copied,
// scores, softmax of a row, values added. See amx_attention.h for the order of work. Unnamed
// namespace: see vector_plain.h.
namespace baton {
namespace {

constexpr int kAmxStepTokens = 128;
constexpr int kAmxStepBlocks = kAmxStepTokens / 16;
constexpr int kAmxStepPairs = kAmxStepTokens / 2;
constexpr int kValueChunkPairs = kTileWords;  // pairs of keys in one product of tiles
// Rows that share one copy of the values and one pass over the keys.
constexpr int kAmxAttentionRows = 96;

// Where a call keeps its rows, padded to whole tiles, and what one step needs.
struct AmxRows {
  std::uint32_t* query;    // [rows, query_words] turned and scaled, zeros beyond D/2
  float* acc;              // [rows, dimensions] weighted values so far
  float* sums;             // [rows, 16] weights so far, by lane
  float* maxima;           // [rows]
  int* visible;            // [rows] keys of the entry at hand
  float* scores;           // [2, 16, kAmxStepTokens] of two tiles of rows
  std::uint32_t* weights;  // [2, 16, kAmxStepPairs] bf16 of adjacent keys
  std::uint32_t* keys;     // [kAmxStepBlocks, query_words, 16] where D/2 is off the grid of 16
  std::uint32_t* values;   // [dimensions / 16, kAmxStepPairs, 16]
  float* saved;            // [16, dimensions]
  int query_words;
  int dimensions;  // D rounded up to 16
  int count;       // rows that exist
};

constexpr int RoundUpTo16(int n) {
  return (n + 15) / 16 * 16;
}

inline AmxRows CarveAmxScratch(float* scratch, int count, int head_dim) {
  AmxRows r;
  const int rows = RoundUpTo16(count);
  r.count = count;
  r.query_words = RoundUpTo16(head_dim / 2);
  r.dimensions = RoundUpTo16(head_dim);
  r.query = Take<std::uint32_t>(scratch, rows * r.query_words);
  r.acc = Take<float>(scratch, rows * r.dimensions);
  r.sums = Take<float>(scratch, rows * 16);
  r.maxima = Take<float>(scratch, rows);
  r.visible = Take<int>(scratch, rows);
  r.scores = Take<float>(scratch, 2 * kTileRows * kAmxStepTokens);
  r.weights = Take<std::uint32_t>(scratch, 2 * kTileRows * kAmxStepPairs);
  r.keys = Take<std::uint32_t>(scratch, kAmxStepTokens * r.query_words);
  r.values = Take<std::uint32_t>(scratch, kAmxStepPairs * r.dimensions);
  r.saved = Take<float>(scratch, kTileRows * r.dimensions);
  return r;
}

inline std::size_t AmxAttentionScratchFloats(int rows, int head_dim) {
  const auto r = static_cast<std::size_t>(RoundUpTo16(rows));
  const auto d = static_cast<std::size_t>(RoundUpTo16(head_dim));
  const auto words = static_cast<std::size_t>(RoundUpTo16(head_dim / 2));
  return r * (words + d + 16 + 2) + kTileRows * (2 * kAmxStepTokens + 2 * kAmxStepPairs + d) +
         kAmxStepTokens * words + kAmxStepPairs * d;
}

// The blocks of one step as this head sees them.
struct AmxStep {
  const std::uint32_t* keys[kAmxStepBlocks];    // [query_words, 16] words
  const std::uint32_t* values[kAmxStepBlocks];  // [8, D] words
  const std::byte* next[kAmxStepBlocks];        // the next step's, to ask for; null: none
  int key;                                      // the first one's index in its segment
  int seen_by_all;                              // keys from there that every row sees
  int seen_by_any;
};

// Copies keys of a head dimension off the grid of tiles and fills them up with zeros.
inline void PadKeys(const AmxRows& rows, int words, AmxStep& step) {
  for (int b = 0; b * 16 < step.seen_by_any; ++b) {
    std::uint32_t* padded = rows.keys + b * rows.query_words * 16;
    std::memcpy(padded, step.keys[b], static_cast<std::size_t>(words) * 64);
    std::memset(padded + words * 16, 0, static_cast<std::size_t>(rows.query_words - words) * 64);
    step.keys[b] = padded;
  }
}

inline AmxStep MakeAmxStep(const AttentionTile& tile,
                           const AmxRows& rows,
                           const BlockId* blocks,
                           int key,
                           int seen_by_all,
                           int seen_by_any) {
  AmxStep step = {};
  step.key = key;
  step.seen_by_all = std::clamp(seen_by_all - key, 0, kAmxStepTokens);
  step.seen_by_any = std::min(seen_by_any - key, kAmxStepTokens);
  const auto address = [&](int token) {
    return tile.pool + blocks[token / 16].value() * tile.block_stride_bytes;
  };
  for (int b = 0; b * 16 < step.seen_by_any; ++b) {
    const std::byte* block = address(key + b * 16);
    step.keys[b] = reinterpret_cast<const std::uint32_t*>(block);
    step.values[b] = reinterpret_cast<const std::uint32_t*>(block + KeyBytes(tile.head_dim));
    const int next = key + kAmxStepTokens + b * 16;
    step.next[b] = next < seen_by_any ? address(next) : nullptr;
  }
  if (const int words = tile.head_dim / 2; words != rows.query_words) {
    PadKeys(rows, words, step);
  }
  return step;
}

// Asks for a pair's share of the keys and values of a block.
inline void AskForPair(const std::byte* block, int pair, int head_dim) {
  if (block != nullptr) {
    const std::ptrdiff_t bytes = head_dim * 4;
    const std::byte* keys = block + pair * bytes;
    const std::byte* values = keys + KeyBytes(head_dim);
    for (std::ptrdiff_t i = 0; i < bytes; i += 64) {
      __builtin_prefetch(keys + i, 0, 2);
      __builtin_prefetch(values + i, 0, 2);
    }
  }
}

// Copies the values of the step's first `tokens` keys into tiles, zeros behind them up to a whole
// chunk. False when one of key `first_checked` or later is not finite.
inline bool CopyValues(
    const AmxRows& rows, const AmxStep& step, int head_dim, int tokens, int first_checked) {
  using V = VectorAvx512Bf16;
  bool finite = true;
  const int end = RoundUpTo16((tokens + 1) / 2);
  for (int pair = 0; pair < end; ++pair) {
    std::uint32_t* out = rows.values + pair * kTileWords;
    const int valid = tokens - 2 * pair;
    const V::Words keep = V::SetWord(valid >= 2 ? 0xffffffffu : valid == 1 ? 0x0000ffffu : 0u);
    const std::uint32_t* in = step.values[pair / 8] + pair % 8 * head_dim;
    if (valid > 0) {
      AskForPair(step.next[pair / 8], pair % 8, head_dim);
    }
    for (int d = 0; d < head_dim; d += kTileWords) {
      const V::Words loaded = valid > 0 ? V::LoadWordsFirst(in + d, head_dim - d) : keep;
      const V::Words words = V::And(loaded, keep);
      V::StoreWordsFirst(out + d * kAmxStepPairs, words, kTileWords);
      if (2 * pair + 1 >= first_checked) {
        finite = finite && V::IsFinite(words);
      }
    }
  }
  return finite;
}

// Scores of the rows of a tile for kBlocks blocks of keys.
template <int kBlocks>
void ScoreBlocks(const AmxRows& rows,
                 const std::uint32_t* query,
                 const std::uint32_t* const* keys,
                 float* scores) {
  ZeroTile<0>();
  ZeroTile<1>();
  ZeroTile<2>();
  ZeroTile<3>();
  const std::ptrdiff_t stride = rows.query_words * 4;
  for (int word = 0; word < rows.query_words; word += kTileWords) {
    LoadTile<4>(query + word, stride);
    LoadTile<5>(keys[0] + word * 16, kTileRowBytes);
    DotTile<0, 4, 5>();
    if constexpr (kBlocks > 1) {
      LoadTile<6>(keys[1] + word * 16, kTileRowBytes);
      DotTile<1, 4, 6>();
    }
    if constexpr (kBlocks > 2) {
      LoadTile<7>(keys[2] + word * 16, kTileRowBytes);
      DotTile<2, 4, 7>();
    }
    if constexpr (kBlocks > 3) {
      LoadTile<5>(keys[3] + word * 16, kTileRowBytes);
      DotTile<3, 4, 5>();
    }
  }
  StoreTile<0>(scores, kAmxStepTokens * 4);
  if constexpr (kBlocks > 1) {
    StoreTile<1>(scores + 16, kAmxStepTokens * 4);
  }
  if constexpr (kBlocks > 2) {
    StoreTile<2>(scores + 32, kAmxStepTokens * 4);
  }
  if constexpr (kBlocks > 3) {
    StoreTile<3>(scores + 48, kAmxStepTokens * 4);
  }
}

// acc += weights * values for kTiles times 16 dimensions of the rows of a tile.
template <int kTiles>
void AddValueTiles(const AmxRows& rows,
                   float* acc,
                   const std::uint32_t* weights,
                   const std::uint32_t* values,
                   int chunks) {
  const std::ptrdiff_t stride = rows.dimensions * 4;
  LoadTile<0>(acc, stride);
  if constexpr (kTiles > 1) {
    LoadTile<1>(acc + 16, stride);
  }
  if constexpr (kTiles > 2) {
    LoadTile<2>(acc + 32, stride);
  }
  if constexpr (kTiles > 3) {
    LoadTile<3>(acc + 48, stride);
  }
  constexpr int kNextTile = kAmxStepPairs * kTileWords;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    LoadTile<4>(weights + chunk * kValueChunkPairs, kAmxStepPairs * 4);
    LoadTile<5>(values, kTileRowBytes);
    DotTile<0, 4, 5>();
    if constexpr (kTiles > 1) {
      LoadTile<6>(values + kNextTile, kTileRowBytes);
      DotTile<1, 4, 6>();
    }
    if constexpr (kTiles > 2) {
      LoadTile<7>(values + 2 * kNextTile, kTileRowBytes);
      DotTile<2, 4, 7>();
    }
    if constexpr (kTiles > 3) {
      LoadTile<5>(values + 3 * kNextTile, kTileRowBytes);
      DotTile<3, 4, 5>();
    }
    values += kValueChunkPairs * kTileWords;
  }
  StoreTile<0>(acc, stride);
  if constexpr (kTiles > 1) {
    StoreTile<1>(acc + 16, stride);
  }
  if constexpr (kTiles > 2) {
    StoreTile<2>(acc + 32, stride);
  }
  if constexpr (kTiles > 3) {
    StoreTile<3>(acc + 48, stride);
  }
}

// Turns the scores of one row into weights 2^(score - maximum), zero from key `tokens` on, and
// brings its maximum, its sum and the scale of what it has summed up to date. kMasked: the row does
// not see all of the chunks.
template <bool kMasked>
void AmxSoftmaxRow(const AmxRows& rows,
                   int row,
                   const float* scores,
                   int tokens,
                   int chunks,
                   std::uint32_t* weights) {
  using V = VectorAvx512Bf16;
  const auto own = [&](V::Float x, float other, int v) {
    return kMasked ? V::SelectFirst(x, V::Set(other), std::clamp(tokens - v * 16, 0, 16)) : x;
  };
  const float before = rows.maxima[row];
  V::Float maximum = V::Set(before);
  for (int v = 0; v < 2 * chunks; ++v) {
    maximum = V::Max(maximum, own(V::Load(scores + v * 16), kLowest, v));
  }
  const float after = V::ReduceMax(maximum);
  V::Float sum = V::Load(rows.sums + row * 16);
  if (after != before) {
    const V::Float rescale = V::Exp2(V::Set(before - after));
    rows.maxima[row] = after;
    sum = V::Multiply(sum, rescale);
    float* acc = rows.acc + row * rows.dimensions;
    for (int d = 0; d < rows.dimensions; d += 16) {
      V::Store(acc + d, V::Multiply(V::Load(acc + d), rescale));
    }
  }
  const V::Float shift = V::Set(after);
  const auto weigh = [&](int v) {
    const V::Float score = own(V::Load(scores + v * 16), kLowest, v);
    return own(V::Exp2OfNonPositive(V::Subtract(score, shift)), 0.0f, v);
  };
  auto* halves = reinterpret_cast<std::uint16_t*>(weights);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const V::Float first = weigh(2 * chunk);
    const V::Float second = weigh(2 * chunk + 1);
    sum = V::Add(V::Add(sum, first), second);
    V::StoreBFloat16Twice(halves + chunk * 32, first, second);
  }
  V::Store(rows.sums + row * 16, sum);
}

}  // namespace
}  // namespace baton
