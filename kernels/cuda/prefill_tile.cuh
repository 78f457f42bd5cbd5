#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_device.cuh"

// How prefill attention is cut: a tile into the rows of its warps, the keys that it sees into
// steps, and the copies that bring the steps to shared memory.
namespace baton::BATON_CUDA_NAMESPACE {

inline constexpr int kWarpRows = 16;  // pairs (row, head): the rows of a matrix product
inline constexpr int kStepKeys = 64;
inline constexpr int kStepBlocks = kStepKeys / kBlockTokens;
inline constexpr int kSlices = kStepKeys / 16;  // 16 keys: the depth of a matrix product
static_assert(kWarps * kWarpRows == cuda::kTileRows);

template <int kHeadDim>
struct PrefillStage {
  static constexpr int kCount = kHeadDim == 64 ? 3 : 2;
  static constexpr int kRowChunks = kHeadDim / kChunkElements;
  static constexpr int kRowBytes = kHeadDim * kElementBytes;
  static constexpr int kValues = kStepKeys * kRowBytes;  // offset of the values, behind the keys
  static constexpr int kBytes = 2 * kValues;
  // Shared memory: the stages, then the queries of the tile. 56 or 80 KiB.
  static constexpr int kQueries = kCount * kBytes;
  static constexpr int kWarpQueryBytes = kWarpRows * kRowBytes;
  static constexpr int kSharedBytes = kQueries + kWarps * kWarpQueryBytes;
};

// Where a chunk of a row lies among rows of keys, values or queries.
template <int kHeadDim>
__device__ int ChunkOffset(int row, int chunk) {
  return row * PrefillStage<kHeadDim>::kRowBytes + (chunk ^ (row & 7)) * kChunkBytes;
}

struct PrefillTile {
  int first_row;
  int rows;
  int entries;  // segments of each row
  int kv_head;
  int group;  // heads of the kv head
};

// The largest of a value over the lanes whose numbers differ in these bits; every lane gets it.
__device__ inline int MaximumOverLanes(int value, int first_bit) {
  for (int bit = first_bit; bit < kLanes; bit *= 2) {
    value = max(value, __shfl_xor_sync(kAllLanes, value, bit));
  }
  return value;
}

// A place in the list of steps of a tile; the same in all threads.
struct KeyStep {
  int entry = -1;     // of the rows' lists; at the end, PrefillTile::entries
  int first_key = 0;  // in the segment
  int end_key = 0;    // of the keys of the segment that a row of the tile sees
};

__device__ inline KeyStep Next(const cuda::AttentionLists& lists,
                               const PrefillTile& tile,
                               KeyStep step) {
  step.first_key += kStepKeys;
  while (step.first_key >= step.end_key && ++step.entry < tile.entries) {
    step.first_key = 0;
    step.end_key = 0;
    for (int i = static_cast<int>(threadIdx.x) % kLanes; i < tile.rows; i += kLanes) {
      const int entry = lists.row_segments[tile.first_row + i] + step.entry;
      step.end_key = max(step.end_key, lists.visible_tokens[entry]);
    }
    step.end_key = MaximumOverLanes(step.end_key, 1);
  }
  return step;
}

// Copies ahead. Block ids are read one step before they are needed.
struct StepLoader {
  KeyStep step;
  int blocks[kStepBlocks];
};

__device__ inline void Advance(const cuda::AttentionLists& lists,
                               const PrefillTile& tile,
                               StepLoader* loader) {
  loader->step = Next(lists, tile, loader->step);
  if (loader->step.entry >= tile.entries) {
    return;
  }
  const int entry = lists.row_segments[tile.first_row] + loader->step.entry;
  const int* blocks = lists.block_table + lists.segment_blocks[lists.entry_segment[entry]];
#pragma unroll
  for (int i = 0; i < kStepBlocks; ++i) {
    const int token = loader->step.first_key + i * kBlockTokens;
    loader->blocks[i] = token < loader->step.end_key ? BlockOfToken(blocks, token) : 0;
  }
}

// Starts the copies of the loader's step into a stage and goes to the next step. Keys that no row
// sees become zeros: what their slots hold, or whether they have a block, is unknown. After the
// last step there is nothing to copy, but the group of copies is closed all the same, because
// waiting counts groups.
template <int kHeadDim>
__device__ void Fill(const cuda::AttentionParams& params,
                     const PrefillTile& tile,
                     std::byte* stage,
                     StepLoader* loader) {
  using S = PrefillStage<kHeadDim>;
  constexpr int kPassKeys = kThreads / S::kRowChunks;
  if (loader->step.entry < tile.entries) {
    const int chunk = static_cast<int>(threadIdx.x) % S::kRowChunks;
#pragma unroll
    for (int pass = 0; pass < kStepKeys / kPassKeys; ++pass) {
      const int key = pass * kPassKeys + static_cast<int>(threadIdx.x) / S::kRowChunks;
      const bool seen = loader->step.first_key + key < loader->step.end_key;
      const int block = loader->blocks[pass * kPassKeys / kBlockTokens];
      const std::byte* source = params.pool.layer + block * params.pool.block_bytes +
                                KeyOffset<kHeadDim>(tile.kv_head, key) + chunk * kChunkBytes;
      std::byte* target = stage + ChunkOffset<kHeadDim>(key, chunk);
      CopyAsync16(target, source, seen ? kChunkBytes : 0);
      CopyAsync16(target + S::kValues, source + ValueOffset<kHeadDim>(params.pool),
                  seen ? kChunkBytes : 0);
    }
    Advance(params.lists, tile, loader);
  }
  CommitCopies();
}

// The 16 pairs (row, head) of a warp: 16 rows of matrix products.
struct RowHead {
  int row;
  int head;
  bool present;  // the tile may have fewer
};
__device__ inline RowHead RowHeadOf(const PrefillTile& tile, int warp_row) {
  const int pair = static_cast<int>(threadIdx.x) / kLanes * kWarpRows + warp_row;
  const bool present = pair / tile.group < tile.rows;
  return {tile.first_row + (present ? pair / tile.group : 0),
          tile.kv_head * tile.group + pair % tile.group, present};
}

}  // namespace baton::BATON_CUDA_NAMESPACE
