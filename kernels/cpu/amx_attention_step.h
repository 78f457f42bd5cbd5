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

// For `count` rows of each of `heads` key/value heads; the rows are the first head's.
inline AmxRows CarveAmxScratch(float* scratch, int count, int heads, int head_dim) {
  AmxRows r;
  const int rows = heads * RoundUpTo16(count);
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

// The rows of another head, with the same memory for a step.
inline AmxRows RowsOfHead(const AmxRows& rows, int head) {
  AmxRows r = rows;
  const int first = head * RoundUpTo16(rows.count);
  r.query += first * rows.query_words;
  r.acc += first * rows.dimensions;
  r.sums += first * 16;
  r.maxima += first;
  r.visible += first;
  return r;
}

inline std::size_t AmxAttentionScratchFloats(int rows, int heads, int head_dim) {
  const auto r = static_cast<std::size_t>(heads * RoundUpTo16(rows));
  const auto d = static_cast<std::size_t>(RoundUpTo16(head_dim));
  const auto words = static_cast<std::size_t>(RoundUpTo16(head_dim / 2));
  return r * (words + d + 16 + 2) + kTileRows * (2 * kAmxStepTokens + 2 * kAmxStepPairs + d) +
         kAmxStepTokens * words + kAmxStepPairs * d;
}

// The blocks of one step as one head sees them.
struct AmxStep {
  const std::uint32_t* keys[kAmxStepBlocks];    // [query_words, 16] words
  const std::uint32_t* values[kAmxStepBlocks];  // [8, D] words
  int key;                                      // the first one's index in its segment
  int seen_by_all;                              // keys from there that every row sees
  int seen_by_any;
};

// Keys and values of the next step, asked for during this one from a block's first line to its
// last: its heads lie side by side.
class NextStep {
 public:
  // Of `ahead`, from token `first` on.
  NextStep(const AttentionAhead& ahead, int first, std::size_t block_stride_bytes, int head_dim)
      : block_(ahead.blocks + first / 16),
        blocks_left_((std::min(ahead.tokens - first, kAmxStepTokens) + 15) / 16),
        pool_(ahead.pool),
        block_stride_(block_stride_bytes),
        block_bytes_(ahead.heads * static_cast<std::ptrdiff_t>(HeadBytes(head_dim))) {}

  [[gnu::always_inline]] void Ask(int lines) {
    if (next_ >= end_) {
      if (blocks_left_ == 0) {
        return;
      }
      --blocks_left_;
      next_ = pool_ + block_++->value() * block_stride_;
      end_ = next_ + block_bytes_;
    }
    const std::byte* const first = next_;
    next_ += lines * 64;
#pragma GCC unroll 8
    for (int line = 0; line < lines; ++line) {
      __builtin_prefetch(first + line * 64, 0, 2);
    }
  }

 private:
  const BlockId* block_;
  int blocks_left_;
  const std::byte* pool_;
  std::size_t block_stride_;
  std::ptrdiff_t block_bytes_;
  const std::byte* next_ = nullptr;
  const std::byte* end_ = nullptr;
};

// Where products are the bound, they are left alone.
struct NothingAhead {
  void Ask(int /*lines*/) const {}
};

// Lines to ask for with every 16 words of values and every product of tiles, so that a step as long
// is asked for when this one is done. Few rows wait for memory: they spread it over all they do,
// since many requests at once hold up the loads behind them.
constexpr int kValueLinesOfFewRows = 1;
constexpr int kProductLinesOfFewRows = 8;
constexpr int kValueLinesOfManyRows = 2;

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
  }
  if (const int words = tile.head_dim / 2; words != rows.query_words) {
    PadKeys(rows, words, step);
  }
  return step;
}

// Copies the values of the step's first `tokens` keys into tiles, zeros behind them up to a whole
// chunk. False when one of key `first_checked` or later is not finite.
template <int kLines>
bool CopyValues(const AmxRows& rows,
                const AmxStep& step,
                int head_dim,
                int tokens,
                int first_checked,
                NextStep& next) {
  using V = VectorAvx512Bf16;
  const auto in = [&](int pair) { return step.values[pair / 8] + pair % 8 * head_dim; };
  const int plain = head_dim % kTileWords == 0 ? std::min(tokens, first_checked) / 2 : 0;
  const int lines = kLines * RoundUpTo16(head_dim) / kTileWords;
  for (int pair = 0; pair < plain; ++pair) {
    next.Ask(lines);
    const std::uint32_t* const values = in(pair);
    std::uint32_t* const out = rows.values + pair * kTileWords;
    for (int d = 0; d < head_dim; d += kTileWords) {
      V::StoreWords(out + d * kAmxStepPairs, V::LoadWords(values + d));
    }
  }
  bool finite = true;
  const int end = RoundUpTo16((tokens + 1) / 2);
  for (int pair = plain; pair < end; ++pair) {
    next.Ask(lines);
    std::uint32_t* const out = rows.values + pair * kTileWords;
    const int valid = tokens - 2 * pair;
    const V::Words keep = V::SetWord(valid >= 2 ? 0xffffffffu : valid == 1 ? 0x0000ffffu : 0u);
    for (int d = 0; d < head_dim; d += kTileWords) {
      const V::Words loaded = valid > 0 ? V::LoadWordsFirst(in(pair) + d, head_dim - d) : keep;
      const V::Words words = V::And(loaded, keep);
      V::StoreWords(out + d * kAmxStepPairs, words);
      if (2 * pair + 1 >= first_checked) {
        finite = finite && V::IsFinite(words);
      }
    }
  }
  return finite;
}

// Scores of the rows of a tile for kBlocks blocks of keys.
template <int kBlocks, typename Ahead>
[[gnu::noinline]] void ScoreBlocks(const AmxRows& rows,
                                   const std::uint32_t* query,
                                   const std::uint32_t* const* keys,
                                   float* scores,
                                   Ahead& ahead) {
  ZeroTile<0>();
  ZeroTile<1>();
  ZeroTile<2>();
  ZeroTile<3>();
  const std::ptrdiff_t stride = rows.query_words * 4;
  for (int word = 0; word < rows.query_words; word += kTileWords) {
    LoadTile<4>(query + word, stride);
    LoadTile<5>(keys[0] + word * 16, kTileRowBytes);
    DotTile<0, 4, 5>();
    ahead.Ask(kProductLinesOfFewRows);
    if constexpr (kBlocks > 1) {
      LoadTile<6>(keys[1] + word * 16, kTileRowBytes);
      DotTile<1, 4, 6>();
      ahead.Ask(kProductLinesOfFewRows);
    }
    if constexpr (kBlocks > 2) {
      LoadTile<7>(keys[2] + word * 16, kTileRowBytes);
      DotTile<2, 4, 7>();
      ahead.Ask(kProductLinesOfFewRows);
    }
    if constexpr (kBlocks > 3) {
      LoadTile<5>(keys[3] + word * 16, kTileRowBytes);
      DotTile<3, 4, 5>();
      ahead.Ask(kProductLinesOfFewRows);
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
template <int kTiles, typename Ahead>
void AddValueTiles(const AmxRows& rows,
                   float* acc,
                   const std::uint32_t* weights,
                   const std::uint32_t* values,
                   int chunks,
                   Ahead& ahead) {
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
    ahead.Ask(kProductLinesOfFewRows);
    if constexpr (kTiles > 1) {
      LoadTile<6>(values + kNextTile, kTileRowBytes);
      DotTile<1, 4, 6>();
      ahead.Ask(kProductLinesOfFewRows);
    }
    if constexpr (kTiles > 2) {
      LoadTile<7>(values + 2 * kNextTile, kTileRowBytes);
      DotTile<2, 4, 7>();
      ahead.Ask(kProductLinesOfFewRows);
    }
    if constexpr (kTiles > 3) {
      LoadTile<5>(values + 3 * kNextTile, kTileRowBytes);
      DotTile<3, 4, 5>();
      ahead.Ask(kProductLinesOfFewRows);
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
