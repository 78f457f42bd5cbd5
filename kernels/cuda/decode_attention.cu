#include "kernels/cuda/attention_device.cuh"
#include "kernels/cuda/decode_stream.cuh"

// Attention of single rows over the KV pool, on CUDA cores: grid (split, part of the heads of a kv
// head, row). A block reads the keys and values of its split once for all its heads. Its lanes form
// groups of D/8, which hold one key at a time, 16 bytes each; every group runs its own online
// softmax over every so many-th key, and the groups are merged at the end, first inside a warp,
// then over the warps. Rows that are cut into several splits are put together by a second kernel.
//
// Bound by memory: 4 D bytes a key and kv head are read once; up to groups of about 4 heads the
// arithmetic hides behind that.
//
// Where a row is cut and which lane takes which key follow from the row's own visible tokens, so
// its result is the same in every batch and grid. All arithmetic is in float.
namespace baton::BATON_CUDA_NAMESPACE {
namespace {

constexpr int kMostHeads = 8;  // of a block; a larger group takes several blocks

__device__ int VisibleTokens(const cuda::AttentionLists& lists, int row) {
  int total = 0;
  for (int entry = lists.row_segments[row]; entry < lists.row_segments[row + 1]; ++entry) {
    total += lists.visible_tokens[entry];
  }
  return total;
}

// The part of a row's visible tokens, its entries' one after the other, that a split covers. Cut at
// multiples of 16, as evenly as that allows.
__device__ KeyRange SplitRange(int visible, int splits, int split) {
  const int blocks = (visible + kBlockTokens - 1) / kBlockTokens;
  return {min(blocks * split / splits * kBlockTokens, visible),
          min(blocks * (split + 1) / splits * kBlockTokens, visible)};
}

// Scratch of the second kernel: D sums for each row, head and split, then maximum and weight of
// each.
struct Partials {
  float* sums;   // [rows, H, splits, D]
  float* stats;  // [rows, H, splits, 2]
};
__device__ Partials PartialsOf(const cuda::DecodeAttentionParams& params, int row, int head) {
  const auto all = static_cast<std::int64_t>(params.row_count) * params.attention.heads *
                   params.splits * params.attention.head_dim;
  const auto first =
      (static_cast<std::int64_t>(row) * params.attention.heads + head) * params.splits;
  return {params.partials + first * params.attention.head_dim, params.partials + all + first * 2};
}

// The heads that a block works on.
struct BlockHeads {
  int kv_head;
  int first;
  int count;
};
template <int kHeads>
__device__ BlockHeads HeadsOfBlock(const cuda::AttentionParams& params) {
  const int group = params.heads / params.pool.kv_heads;
  const int parts = (group + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.y) / parts;
  const int first_of_group = static_cast<int>(blockIdx.y) % parts * kHeads;
  return {kv_head, kv_head * group + first_of_group, min(kHeads, group - first_of_group)};
}

// What each warp has seen.
template <int kHeadDim, int kHeads>
struct WarpResults {
  float sums[kWarps][kHeads][kHeadDim];
  float maximum[kWarps][kHeads];
  float weight[kWarps][kHeads];
};

template <int kHeadDim, int kHeads>
__device__ void ShareResults(const DecodeStream<kHeads>& stream,
                             WarpResults<kHeadDim, kHeads>* results) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (lane < DecodeShape<kHeadDim, kHeads>::kKeyLanes) {
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      if (lane == 0) {
        results->maximum[warp][head] = stream.maximum[head];
        results->weight[warp][head] = stream.weight[head];
      }
#pragma unroll
      for (int i = 0; i < kChunkElements; ++i) {
        results->sums[warp][head][lane * kChunkElements + i] = stream.sums[head][i];
      }
    }
  }
  if (!kPlantMissingMergeBarrier && (!kPlantDivergentBarrier || warp > 0)) {
    __syncthreads();
  }
}

// Merges the warps in their order and writes the result of the row, or of its split.
template <int kHeadDim, class T, int kHeads>
__device__ void WriteResults(const cuda::DecodeAttentionParams& params,
                             const WarpResults<kHeadDim, kHeads>& results,
                             const BlockHeads& heads,
                             int splits) {
  const int index = static_cast<int>(blockIdx.z);
  const int split = static_cast<int>(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < heads.count * kHeadDim / 2; i += kThreads) {
    const int head = i / (kHeadDim / 2);
    const int pair = i % (kHeadDim / 2);
    float maximum = kMinusInfinity;
    for (int warp = 0; warp < kWarps; ++warp) {
      maximum = fmaxf(maximum, results.maximum[warp][head]);
    }
    float2 sum = {0, 0};
    float weight = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      const float shrink = Exp2(results.maximum[warp][head] - FiniteMaximum(maximum));
      weight = fmaf(shrink, results.weight[warp][head], weight);
      sum.x = fmaf(shrink, results.sums[warp][head][2 * pair], sum.x);
      sum.y = fmaf(shrink, results.sums[warp][head][2 * pair + 1], sum.y);
    }
    if (splits == 1) {
      const float inverse = weight == 0 ? 0 : 1 / weight;
      OutputWords<kHeadDim>(params.attention, params.rows[index], heads.first + head)[pair] =
          PackPair<T>(sum.x * inverse, sum.y * inverse);
    } else {
      const Partials partials = PartialsOf(params, index, heads.first + head);
      partials.sums[split * kHeadDim + 2 * pair] = sum.x;
      partials.sums[split * kHeadDim + 2 * pair + 1] = sum.y;
      if (pair == 0) {
        partials.stats[2 * split] = maximum;
        partials.stats[2 * split + 1] = weight;
      }
    }
  }
}

// For a row that needs more splits than the grid has: nobody may take what others wrote for its
// result.
template <int kHeadDim>
__device__ void WriteNaN(const cuda::AttentionParams& params, int row, const BlockHeads& heads) {
  for (int i = static_cast<int>(threadIdx.x); i < heads.count * kHeadDim / 2; i += kThreads) {
    OutputWords<kHeadDim>(params, row, heads.first)[i] = 0xffffffffu;
  }
}

template <int kHeadDim, class T, int kHeads>
__global__ void __launch_bounds__(kThreads, (DecodeShape<kHeadDim, kHeads>::kResidentBlocks))
    DecodeAttentionKernel(cuda::DecodeAttentionParams params) {
  __shared__ WarpResults<kHeadDim, kHeads> results;
  const cuda::AttentionParams& attention = params.attention;
  const cuda::AttentionLists& lists = attention.lists;
  const int split = static_cast<int>(blockIdx.x);
  const int row = params.rows[blockIdx.z];
  if (row < 0) {
    return;
  }
  const BlockHeads heads = HeadsOfBlock<kHeads>(attention);
  const int visible = VisibleTokens(lists, row);
  const int splits = cuda::SplitsFor(visible);
  if (splits > params.splits) {
    if (split == 0) {
      WriteNaN<kHeadDim>(attention, row, heads);
    }
    return;
  }
  if (split >= splits) {
    return;
  }

  DecodeStream<kHeads> stream;
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    stream.maximum[head] = kMinusInfinity;
    stream.weight[head] = 0;
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) {
      stream.sums[head][i] = 0;
    }
  }
  const float* query = attention.query + row * attention.query_stride + heads.first * kHeadDim;
  const KeyRange part = SplitRange(visible, splits, split);
  int passed = 0;  // visible tokens of the entries before
  for (int entry = lists.row_segments[row]; entry < lists.row_segments[row + 1]; ++entry) {
    const int entry_visible = lists.visible_tokens[entry];
    const KeyRange range = {max(part.begin - passed, 0), min(part.end - passed, entry_visible)};
    passed += entry_visible;
    if (range.begin < range.end) {
      TurnQuery<kHeadDim, kHeads>(attention, query, heads.count, lists.delta[entry], &stream);
      const int* blocks = lists.block_table + lists.segment_blocks[lists.entry_segment[entry]];
      AddKeys<kHeadDim, T, kHeads>(attention.pool, blocks, heads.kv_head, range, &stream);
    }
  }

  MergeInWarp<kHeadDim, kHeads>(&stream);
  ShareResults(stream, &results);
  WriteResults<kHeadDim, T, kHeads>(params, results, heads, splits);
}

// Puts the splits of a row together, one warp for each head, in the order of the splits: grid (4
// heads, row). Rows of one split are complete already.
template <int kHeadDim, class T>
__global__ void __launch_bounds__(kThreads)
    CombineSplitsKernel(cuda::DecodeAttentionParams params) {
  constexpr int kPairs = kHeadDim / 2 / kLanes;  // of a lane
  const int index = static_cast<int>(blockIdx.y);
  const int head = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kLanes);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int row = params.rows[index];
  if (row < 0 || head >= params.attention.heads) {
    return;
  }
  const int splits = cuda::SplitsFor(VisibleTokens(params.attention.lists, row));
  if (splits == 1 || splits > params.splits) {
    return;
  }

  const Partials partials = PartialsOf(params, index, head);
  float maximum = kMinusInfinity;
  for (int split = 0; split < splits; ++split) {
    maximum = fmaxf(maximum, partials.stats[2 * split]);
  }
  float2 sums[kPairs] = {};
  float weight = 0;
  for (int split = 0; split < splits; ++split) {
    const float shrink = Exp2(partials.stats[2 * split] - FiniteMaximum(maximum));
    weight = fmaf(shrink, partials.stats[2 * split + 1], weight);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float* pair = partials.sums + split * kHeadDim + 2 * (lane + i * kLanes);
      sums[i].x = fmaf(shrink, pair[0], sums[i].x);
      sums[i].y = fmaf(shrink, pair[1], sums[i].y);
    }
  }
  const float inverse = weight == 0 ? 0 : 1 / weight;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    OutputWords<kHeadDim>(params.attention, row, head)[lane + i * kLanes] =
        PackPair<T>(sums[i].x * inverse, sums[i].y * inverse);
  }
}

struct Kernels {
  void (*attention)(cuda::DecodeAttentionParams);
  int heads;  // of a block
  void (*combine)(cuda::DecodeAttentionParams);
};

template <int kHeadDim, class T>
Kernels KernelsForGroup(int group) {
  const auto combine = &CombineSplitsKernel<kHeadDim, T>;
  switch (group) {
    case 1:
      return {&DecodeAttentionKernel<kHeadDim, T, 1>, 1, combine};
    case 2:
      return {&DecodeAttentionKernel<kHeadDim, T, 2>, 2, combine};
    case 3:
      return {&DecodeAttentionKernel<kHeadDim, T, 3>, 3, combine};
    case 4:
      return {&DecodeAttentionKernel<kHeadDim, T, 4>, 4, combine};
    default:
      return {&DecodeAttentionKernel<kHeadDim, T, kMostHeads>, kMostHeads, combine};
  }
}

Kernels KernelsFor(int head_dim, cuda::Element element, int group) {
  return WithElement(element, [=](auto type) {
    using T = decltype(type);
    return head_dim == 64 ? KernelsForGroup<64, T>(group) : KernelsForGroup<128, T>(group);
  });
}

}  // namespace

cuda::LaunchCode LaunchDecodeAttention(const cuda::DecodeAttentionParams& params,
                                       cuda::StreamHandle stream) {
  const cuda::AttentionParams& attention = params.attention;
  if (!ValidParams(attention) || params.splits < 1 || params.splits > cuda::kMaxSplits) {
    return kInvalidParams;
  }
  if (params.row_count == 0) {
    return 0;
  }
  const auto rows = static_cast<unsigned>(params.row_count);
  const int kv_heads = attention.pool.kv_heads;
  const int group = attention.heads / kv_heads;
  const Kernels kernels = KernelsFor(attention.head_dim, attention.element, group);
  const int parts = (group + kernels.heads - 1) / kernels.heads;
  const dim3 grid(static_cast<unsigned>(params.splits), static_cast<unsigned>(kv_heads * parts),
                  rows);
  const cuda::LaunchCode code = Launch(kernels.attention, grid, dim3(kThreads), 0, stream, params);
  if (code != 0 || params.splits == 1) {
    return code;
  }
  const dim3 combine_grid(static_cast<unsigned>((attention.heads + kWarps - 1) / kWarps), rows);
  return Launch(kernels.combine, combine_grid, dim3(kThreads), 0, stream, params);
}

}  // namespace baton::BATON_CUDA_NAMESPACE
