#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch_types.h"

// Paged attention on a GPU. Meaning of rows, entries, segments, delta and visible tokens:
// PagedAttentionArgs in kernels/ops.h. All pointers are device memory.
namespace baton::cuda {

// Values in 16 bits: keys, values, outputs.
enum class Element { kBFloat16, kHalf };

// A layer of a block is keys `[G][kBlockTokens][D]`, then values `[G][kBlockTokens][D]`: layout id
// "cuda-token-major-v1".
struct KvPool {
  std::byte* layer = nullptr;    // this layer of block 0
  std::int64_t block_bytes = 0;  // from a block to the next
  int kv_heads = 0;              // G
};

// The lists that say what each row sees, flattened; the same for every layer of a step, so they
// live in one buffer that one copy refreshes.
struct AttentionLists {
  const int* row_segments = nullptr;    // [T + 1] first entry of each row
  const int* entry_segment = nullptr;   // [entries]
  const int* delta = nullptr;           // [entries]
  const int* visible_tokens = nullptr;  // [entries]
  const int* segment_blocks =
      nullptr;                       // [segments] index in block_table of a segment's first block
  const int* block_table = nullptr;  // block ids of all segments, one after the other
};

// Most pieces that one row's context is cut into. A piece is at least kFewestTokensOfSplit visible
// tokens of one row; where the cuts are depends on this row's visible tokens alone, so that a row's
// result does not depend on its batch.
inline constexpr int kMaxSplits = 64;
inline constexpr int kFewestTokensOfSplit = 128;

struct AttentionParams {
  const float* query = nullptr;   // [T, H, D], not rotated; aligned to 16 bytes
  std::int64_t query_stride = 0;  // elements from a row to the next, a multiple of 4
  KvPool pool;
  AttentionLists lists;
  const float* rope = nullptr;  // [positions, D/2, 2]: cosine, sine of rotation by a position;
                                // aligned to 8 bytes
  float scale = 0;
  int heads = 0;     // H, a multiple of G
  int head_dim = 0;  // D: 64 or 128
  Element element = Element::kBFloat16;
  void* output = nullptr;          // [T, H, D] of `element`
  std::int64_t output_stride = 0;  // even
};

// Rows one by one, CUDA cores: grid (split, kv head, row of `rows`), then the splits of each row
// are combined. A row without entries (padding of a batch bucket) gives zeros; one that needs more
// splits than the grid has gives NaN.
struct DecodeAttentionParams {
  AttentionParams attention;
  const int* rows = nullptr;  // [row_count] which rows of T; -1: nothing to do
  int row_count = 0;
  int splits = 0;             // of the grid, [1, kMaxSplits]; at least what any row needs
  float* partials = nullptr;  // scratch, DecodeScratchFloats()
};

// Splits that a row with this many visible tokens in all its entries is cut into.
inline constexpr int SplitsFor(int visible_tokens) {
  const int wanted = (visible_tokens + kFewestTokensOfSplit - 1) / kFewestTokensOfSplit;
  return wanted < 1 ? 1 : wanted > kMaxSplits ? kMaxSplits : wanted;
}

// Per row, head and split: D unnormalised sums, the maximum and the sum of weights.
inline constexpr std::size_t DecodeScratchFloats(int rows, int heads, int head_dim, int splits) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads) *
         static_cast<std::size_t>(splits) * static_cast<std::size_t>(head_dim + 2);
}

// Neighbouring rows with one list of segments, tensor cores. A tile is at most kTileRows pairs of
// (row, head of the group) for one kv head: `tile_rows` rows are at most kTileRows / (H / G).
inline constexpr int kTileRows = 64;

struct PrefillAttentionParams {
  AttentionParams attention;
  const int* tile_first_row = nullptr;  // [tiles]
  const int* tile_rows = nullptr;       // [tiles]
  int tiles = 0;
};

}  // namespace baton::cuda
