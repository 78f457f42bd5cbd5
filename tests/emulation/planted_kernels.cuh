#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

// Small kernels with the structure of the attention kernels, each with one bug that can be planted.
// What finds each bug is in tests/emulation/README.md. The line under a
// comment "found: ..." is one that a sanitizer has to name.
namespace baton::BATON_CUDA_NAMESPACE {

enum class Bug {
  kNone,
  kNoBarrierBeforeMerge,
  kNoBarrierAfterWait,
  kNoBarrierAtLoopEnd,
  kWaitForOneGroupTooFew,
  kSwappedFragments,
  kPastBlockTable,
  kDivergentBarrier,
};

inline constexpr int kMergeWarps = 4;

// sums[row] = sum over values[row, columns]: each warp sums a share, the first thread merges the
// warps' sums, as split decode attention merges its streams.
template <Bug kBug>
__global__ void SumRows(const float* values, int columns, float* sums) {
  float* const of_warp = DynamicShared<float>();  // [kMergeWarps]
  const int row = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kMergeWarps * 32) {
    sum += values[row * columns + i];
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  }
  if (threadIdx.x % 32 == 0) {
    // found: merge, written
    of_warp[warp] = sum;
  }
  if constexpr (kBug == Bug::kDivergentBarrier) {
    if (warp != 1) {
      __syncthreads();
    }
  } else if constexpr (kBug != Bug::kNoBarrierBeforeMerge) {
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    float merged = 0;
    for (int i = 0; i < kMergeWarps; ++i) {
      // found: merge, read
      merged += of_warp[i];
    }
    sums[row] = merged;
  }
}

inline constexpr int kTileWarps = 4;
inline constexpr int kTileDepth = 16;  // of one step

// A [64, depth] times B [8, depth] transposed, one block of four warps with 16 rows each; both
// operands come through two stages of asynchronous copies, as keys and values of prefill attention
// do. depth is a multiple of kTileDepth.
template <Bug kBug>
__global__ void MultiplyStaged(const BFloat16* a, const BFloat16* b, int depth, float* d) {
  constexpr int kRowsOfA = kTileWarps * 16;
  constexpr int kRows = kRowsOfA + 8;
  BFloat16* const shared = DynamicShared<BFloat16>();  // [2, kRows, kTileDepth]
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int steps = depth / kTileDepth;

  const auto fetch = [&](int step) {
    BFloat16* const stage = shared + step % 2 * kRows * kTileDepth;
    for (int piece = thread; piece < kRows * 2; piece += kTileWarps * 32) {
      const int row = piece / 2;
      const int column = piece % 2 * 8;
      const BFloat16* const source =
          row < kRowsOfA ? a + row * depth : b + (row - kRowsOfA) * depth;
      CopyAsync16(stage + row * kTileDepth + column, source + step * kTileDepth + column);
    }
    CommitCopies();
  };

  float sums[4] = {0, 0, 0, 0};
  fetch(0);
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      fetch(step + 1);
      constexpr int kKept = kBug == Bug::kWaitForOneGroupTooFew ? 2 : 1;
      WaitForCopies<kKept>();
    } else {
      WaitForCopies<0>();
    }
    if constexpr (kBug != Bug::kNoBarrierAfterWait) {
      __syncthreads();
    }
    const BFloat16* const stage = shared + step % 2 * kRows * kTileDepth;
    unsigned rows_a[4];
    unsigned rows_b[2];
    const BFloat16* const row_a = stage + (warp * 16 + lane % 16) * kTileDepth + lane / 16 * 8;
    const BFloat16* const row_b = stage + (kRowsOfA + lane % 8) * kTileDepth + lane / 8 % 2 * 8;
    // found: stage, read
    LoadMatrices4(rows_a, row_a);
    LoadMatrices2(rows_b, row_b);
    if constexpr (kBug == Bug::kSwappedFragments) {
      const unsigned swapped[2] = {rows_b[1], rows_b[0]};
      MultiplyTiles<BFloat16>(sums, rows_a, swapped);
    } else {
      MultiplyTiles<BFloat16>(sums, rows_a, rows_b);
    }
    if constexpr (kBug != Bug::kNoBarrierAtLoopEnd) {
      __syncthreads();  // all have read this stage, which the next step's copies overwrite
    }
  }

  float* const out = d + (warp * 16 + lane / 4) * 8 + lane % 4 * 2;
  out[0] = sums[0];
  out[1] = sums[1];
  out[8 * 8] = sums[2];
  out[8 * 8 + 1] = sums[3];
}

inline constexpr int kPagedTokens = 16;  // of one block

// sums[sequence] = sum over the tokens of its blocks in `pool`; a row of the table has
// blocks_of_row entries.
template <Bug kBug>
__global__ void SumBlocks(const float* pool,
                          const int* block_table,
                          int blocks_of_row,
                          float* sums) {
  const int sequence = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x);
  const int blocks = kBug == Bug::kPastBlockTable ? blocks_of_row + 1 : blocks_of_row;
  float sum = 0;
  for (int i = lane / kPagedTokens; i < blocks; i += 2) {
    // found: block table, read
    const int block = block_table[sequence * blocks_of_row + i];
    sum += pool[block * kPagedTokens + lane % kPagedTokens];
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  }
  if (lane == 0) {
    sums[sequence] = sum;
  }
}

}  // namespace baton::BATON_CUDA_NAMESPACE
