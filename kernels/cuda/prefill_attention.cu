#include "kernels/cuda/attention_device.cuh"
#include "kernels/cuda/prefill_tile.cuh"

// Attention of neighbouring rows over the KV pool, on tensor cores: grid (tile, kv head). A tile is
// up to 64 pairs (row, head of the group), which share the keys of one kv head; each of four warps
// has 16 of them. The block walks the segments of its rows in steps of 64 keys, which start at
// multiples of 64 of the segment. Keys and values come through a ring of stages in shared memory,
// copied ahead while the step before is computed; 16-byte chunks of a row are exchanged by an xor
// with the row, so that ldmatrix finds its eight rows in different banks.
//
// Bound by the tensor cores: 4 D operations a key and pair; steps that no row of a tile sees are
// neither copied nor computed, 16 keys that no row of a warp sees are not computed.
//
// A row's sums run over its own keys, in steps that depend on nothing else; what it does not see
// adds zero. So its result is the same wherever a prompt was cut and whoever shares its tile.
// Queries and weights are rounded to the element, sums are in float.
namespace baton::BATON_CUDA_NAMESPACE {
namespace {

// A lane's part of 16 rows and 16 columns of a result, in two accumulators of mma.m16n8k16: first
// two columns of row lane / 4, then of row lane / 4 + 8.
struct Columns {
  float part[2][4];
};

__device__ bool IsFinite(const Columns& columns) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    zero = fmaf(columns.part[i / 4][i % 4], 0.0f, zero);
  }
  return zero == 0;
}

// What a lane holds of the rows of its warp.
template <int kHeadDim>
struct WarpRows {
  int visible[2];               // keys of the current segment; 0 where there is no row
  int least_visible;            // over the rows that the warp has
  int most_visible;             // 0 where it has none
  Columns sums[kHeadDim / 16];  // of exp2(score - maximum) * value
  float maximum[2];
  float weight[2];  // this lane's part of the sum of exp2(score - maximum)
};

// Writes the queries of a warp, turned for a segment, times scale * log2(e), to its rows of shared
// memory.
template <int kHeadDim, class T>
__device__ void TurnQueries(const cuda::AttentionParams& params,
                            const PrefillTile& tile,
                            int entry,
                            std::byte* queries) {
  constexpr int kRowWords = kHeadDim / 4;  // two elements each, of the lower half of a row
  const float factor = params.scale * kLog2E;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const RowHead lane_pair = RowHeadOf(tile, lane % kWarpRows);
  const int lane_delta = params.lists.delta[params.lists.row_segments[lane_pair.row] + entry];
  __syncwarp();  // the queries before are not needed any more
#pragma unroll 4
  for (int i = 0; i < kWarpRows * kRowWords; i += kLanes) {
    const int warp_row = (i + lane) / kRowWords;
    const int column = (i + lane) % kRowWords * 2;
    const int delta = __shfl_sync(kAllLanes, lane_delta, warp_row);
    const RowHead pair = RowHeadOf(tile, warp_row);
    float2 turned[2] = {};
    if (pair.present) {
      const float* query =
          params.query + pair.row * params.query_stride + pair.head * kHeadDim + column;
      const float2 low = *reinterpret_cast<const float2*>(query);
      const float2 high = *reinterpret_cast<const float2*>(query + kHeadDim / 2);
      turned[0] = Turned(low.x, high.x, AngleOf<kHeadDim>(params.rope, delta, column));
      turned[1] = Turned(low.y, high.y, AngleOf<kHeadDim>(params.rope, delta, column + 1));
    }
    const auto word = [&](int first_column) {
      return reinterpret_cast<unsigned*>(
          queries + ChunkOffset<kHeadDim>(warp_row, first_column / kChunkElements) +
          first_column % kChunkElements * kElementBytes);
    };
    *word(column) = PackPair<T>(turned[0].x * factor, turned[1].x * factor);
    *word(column + kHeadDim / 2) = PackPair<T>(turned[0].y * factor, turned[1].y * factor);
  }
  __syncwarp();
}

// What the rows of a warp see of a segment.
template <int kHeadDim>
__device__ void FindVisible(const cuda::AttentionLists& lists,
                            const PrefillTile& tile,
                            int entry,
                            WarpRows<kHeadDim>* rows) {
  int least = INT_MAX;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowHead pair = RowHeadOf(tile, static_cast<int>(threadIdx.x) % kLanes / 4 + 8 * r);
    rows->visible[r] =
        pair.present ? lists.visible_tokens[lists.row_segments[pair.row] + entry] : 0;
    least = pair.present ? min(least, rows->visible[r]) : least;
  }
  rows->most_visible = MaximumOverLanes(max(rows->visible[0], rows->visible[1]), 4);
  rows->least_visible = -MaximumOverLanes(-least, 4);
}

// scores = queries * keys of a stage. Scores of slices that nobody sees are 0.
template <int kHeadDim, class T>
__device__ void MultiplyKeys(const std::byte* queries,
                             const std::byte* keys,
                             int visible,  // of the step's keys, to the row that sees most
                             float (&scores)[2 * kSlices][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int lane_key = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int i = 0; i < 8 * kSlices; ++i) {
    scores[i / 4][i % 4] = 0;
  }
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
    // Rows 0-7 and 8-15 with the lower 8 of 16 elements, then with the upper.
    unsigned query[4];
    LoadMatrices4(query, queries + ChunkOffset<kHeadDim>(lane % 16, 2 * i + lane / 16));
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      if (slice * 16 < visible) {
        // Keys 0-7 of the slice with the lower and upper 8 of 16 elements, then keys 8-15.
        unsigned key[4];
        LoadMatrices4(key,
                      keys + ChunkOffset<kHeadDim>(slice * 16 + lane_key, 2 * i + lane / 8 % 2));
        const unsigned lower[2] = {key[kPlantSwappedFragments], key[!kPlantSwappedFragments]};
        const unsigned upper[2] = {key[2], key[3]};
        MultiplyTiles<T>(scores[2 * slice], query, lower);
        MultiplyTiles<T>(scores[2 * slice + 1], query, upper);
      }
    }
  }
}

// Takes a step's scores into the running softmax; afterwards they are weights, and `weights` holds
// them as the left operand of the product with the values.
template <int kHeadDim, class T>
__device__ void UpdateSoftmax(float (&scores)[2 * kSlices][4],
                              WarpRows<kHeadDim>* rows,
                              unsigned (&weights)[kSlices][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float maximum = rows->maximum[r];
#pragma unroll
    for (int i = 0; i < 2 * kSlices; ++i) {
      maximum = fmaxf(maximum, fmaxf(scores[i][2 * r], scores[i][2 * r + 1]));
    }
    // The four lanes that hold a row.
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
    const float finite = FiniteMaximum(maximum);
    const float shrink = Exp2(rows->maximum[r] - finite);
    rows->maximum[r] = maximum;
    rows->weight[r] *= shrink;
#pragma unroll
    for (int i = 0; i < 2 * kSlices; ++i) {
#pragma unroll
      for (int j = 2 * r; j < 2 * r + 2; ++j) {
        scores[i][j] = Exp2(scores[i][j] - finite);
        rows->weight[r] += scores[i][j];
      }
    }
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
      rows->sums[i / 2].part[i % 2][2 * r] *= shrink;
      rows->sums[i / 2].part[i % 2][2 * r + 1] *= shrink;
    }
  }
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&pair)[4] = scores[2 * slice + i / 2];
      weights[slice][i] = PackPair<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
    }
  }
}

// Clears the elements of keys from `end` on; the word holds those of `key` and the one after it.
__device__ unsigned KeysBefore(unsigned word, int key, int end) {
  const unsigned kept = key < end ? word : 0;
  return key + 1 < end ? kept : kept & 0xffffu;
}

// sums += weights * values, for 16 columns of the values.
template <int kHeadDim, class T>
__device__ void MultiplyValues(const std::byte* values,
                               int column_pair,
                               int visible,
                               int seen_by_row,  // keys from here on count as zeros
                               const unsigned (&weights)[kSlices][4],
                               Columns* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) {
    if (slice * 16 < visible) {
      // Keys 0-7 and 8-15 of the slice with 8 columns, then with the next 8.
      unsigned fragments[4];
      LoadMatrices4Transposed(
          fragments,
          values + ChunkOffset<kHeadDim>(slice * 16 + lane % 16, 2 * column_pair + lane / 16));
      if (seen_by_row < kStepKeys) {
        const int key = slice * 16 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          fragments[i] = KeysBefore(fragments[i], key + i % 2 * 8, seen_by_row);
        }
      }
      const unsigned left[2] = {fragments[0], fragments[1]};
      const unsigned right[2] = {fragments[2], fragments[3]};
      MultiplyTiles<T>(sums->part[0], weights[slice], left);
      MultiplyTiles<T>(sums->part[1], weights[slice], right);
    }
  }
}

// The same where some value that not all rows of the warp see is not finite: a weight of 0 does not
// hide it. Every row is computed with what it does not see replaced by zeros, and taken from its
// own product; its sums are those that it gets among finite values, bit for bit.
template <int kHeadDim, class T>
__device__ void MultiplyValuesRowByRow(const std::byte* values,
                                       int column_pair,
                                       int first_key,
                                       const WarpRows<kHeadDim>& rows,
                                       const unsigned (&weights)[kSlices][4],
                                       Columns* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll 1
  for (int row = 0; row < kWarpRows; ++row) {
    const int own = row < 8 ? rows.visible[0] : rows.visible[1];
    const int seen_by_row = __shfl_sync(kAllLanes, own, row % 8 * 4) - first_key;
    Columns product = *sums;
    MultiplyValues<kHeadDim, T>(values, column_pair, rows.most_visible - first_key, seen_by_row,
                                weights, &product);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (lane / 4 + i % 4 / 2 * 8 == row) {
        sums->part[i / 4][i % 4] = product.part[i / 4][i % 4];
      }
    }
  }
}

// One step: the keys from `first_key` on lie in `stage`.
template <int kHeadDim, class T>
__device__ void ComputeStep(const std::byte* queries,
                            const std::byte* stage,
                            int first_key,
                            WarpRows<kHeadDim>* rows) {
  const int visible = rows->most_visible - first_key;
  float scores[2 * kSlices][4];
  MultiplyKeys<kHeadDim, T>(queries, stage, visible, scores);
  const bool all_seen = first_key + kStepKeys <= rows->least_visible;
  if (!all_seen) {
    const int lane_key = first_key + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * kSlices; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool seen = lane_key + i * 8 + j % 2 < rows->visible[j / 2];
        scores[i][j] = seen ? scores[i][j] : kMinusInfinity;
      }
    }
  }
  unsigned weights[kSlices][4];
  UpdateSoftmax<kHeadDim, T>(scores, rows, weights);

  const std::byte* values = stage + PrefillStage<kHeadDim>::kValues;
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
    Columns sums = rows->sums[i];
    MultiplyValues<kHeadDim, T>(values, i, visible, kStepKeys, weights, &sums);
    if (!all_seen && __any_sync(kAllLanes, !IsFinite(sums))) {
      sums = rows->sums[i];
      MultiplyValuesRowByRow<kHeadDim, T>(values, i, first_key, *rows, weights, &sums);
    }
    rows->sums[i] = sums;
  }
}

template <int kHeadDim, class T>
__device__ void WriteRows(const cuda::AttentionParams& params,
                          const PrefillTile& tile,
                          const WarpRows<kHeadDim>& rows) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float weight = rows.weight[r];
    weight += __shfl_xor_sync(kAllLanes, weight, 1);
    weight += __shfl_xor_sync(kAllLanes, weight, 2);
    const float inverse = weight == 0 ? 0 : 1 / weight;
    const RowHead pair = RowHeadOf(tile, lane / 4 + 8 * r);
    if (pair.present) {
      unsigned* words = OutputWords<kHeadDim>(params, pair.row, pair.head);
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) {
        const float(&part)[4] = rows.sums[i / 2].part[i % 2];
        words[i * 4 + lane % 4] = PackPair<T>(part[2 * r] * inverse, part[2 * r + 1] * inverse);
      }
    }
  }
}

template <int kHeadDim, class T>
__global__ void __launch_bounds__(kThreads, kHeadDim == 64 ? 3 : 2)
    PrefillAttentionKernel(cuda::PrefillAttentionParams params) {
  using S = PrefillStage<kHeadDim>;
  std::byte* stages = DynamicShared<std::byte>();
  std::byte* queries =
      stages + S::kQueries + static_cast<int>(threadIdx.x) / kLanes * S::kWarpQueryBytes;
  const cuda::AttentionParams& attention = params.attention;
  const cuda::AttentionLists& lists = attention.lists;
  // The last tile of a prompt sees most: it starts first, so that the end of the grid is even.
  const int index = params.tiles - 1 - static_cast<int>(blockIdx.x);
  const int first_row = params.tile_first_row[index];
  const PrefillTile tile = {first_row, params.tile_rows[index],
                            lists.row_segments[first_row + 1] - lists.row_segments[first_row],
                            static_cast<int>(blockIdx.y),
                            attention.heads / attention.pool.kv_heads};
  WarpRows<kHeadDim> rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.maximum[r] = kMinusInfinity;
    rows.weight[r] = 0;
  }
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
    rows.sums[i] = {};
  }

  StepLoader loader;
  Advance(lists, tile, &loader);
  for (int i = 0; i < S::kCount - 1; ++i) {
    Fill<kHeadDim>(attention, tile, stages + i * S::kBytes, &loader);
  }
  int stage = 0;
  int entered = -1;
  for (KeyStep step = Next(lists, tile, KeyStep()); step.entry < tile.entries;
       step = Next(lists, tile, step)) {
    WaitForCopies<S::kCount - 2 +
                  kPlantWaitCount>();  // this thread's copies of the step have landed
    std::byte* oldest = stages + (stage + S::kCount - 1) % S::kCount * S::kBytes;
    if (kPlantLoopEndBarrier) {
      Fill<kHeadDim>(attention, tile, oldest, &loader);
    }
    if (!kPlantEarlyRead) {
      __syncthreads();  // everybody's have landed, and everybody is done with the step before
    }
    if (!kPlantLoopEndBarrier) {
      Fill<kHeadDim>(attention, tile, oldest, &loader);
    }
    if (entered != step.entry) {
      entered = step.entry;
      FindVisible(lists, tile, entered, &rows);
      TurnQueries<kHeadDim, T>(attention, tile, entered, queries);
    }
    if (step.first_key < rows.most_visible) {
      ComputeStep<kHeadDim, T>(queries, stages + stage * S::kBytes, step.first_key, &rows);
    }
    stage = (stage + 1) % S::kCount;
  }
  WriteRows<kHeadDim, T>(attention, tile, rows);
}

using Kernel = void (*)(cuda::PrefillAttentionParams);

Kernel KernelFor(int head_dim, cuda::Element element) {
  return WithElement(element, [=](auto type) -> Kernel {
    using T = decltype(type);
    return head_dim == 64 ? &PrefillAttentionKernel<64, T> : &PrefillAttentionKernel<128, T>;
  });
}

}  // namespace

cuda::LaunchCode LaunchPrefillAttention(const cuda::PrefillAttentionParams& params,
                                        cuda::StreamHandle stream) {
  const cuda::AttentionParams& attention = params.attention;
  if (!ValidParams(attention) || attention.heads / attention.pool.kv_heads > cuda::kTileRows) {
    return kInvalidParams;
  }
  if (params.tiles == 0) {
    return 0;
  }
  const std::size_t shared_bytes =
      attention.head_dim == 64 ? PrefillStage<64>::kSharedBytes : PrefillStage<128>::kSharedBytes;
  const dim3 grid(static_cast<unsigned>(params.tiles),
                  static_cast<unsigned>(attention.pool.kv_heads));
  return Launch(KernelFor(attention.head_dim, attention.element), grid, dim3(kThreads),
                shared_bytes, stream, params);
}

}  // namespace baton::BATON_CUDA_NAMESPACE
