#include "kernels/cuda/attention_device.cuh"

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

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kLanes;
constexpr int kMostHeads = 8;  // of a block; a larger group takes several blocks

template <int kHeadDim, int kHeads>
struct Shape {
  static constexpr int kKeyLanes = kHeadDim / kChunkElements;  // lanes that hold one key
  static constexpr int kStreams = kThreads / kKeyLanes;
  static constexpr int kUnroll = kHeads <= 3   ? 4
                                 : kHeads == 4 ? 3
                                               : 2;  // keys of a stream in flight
  static constexpr int kStepKeys = kStreams * kUnroll;
  // Blocks that a multiprocessor should hold: their loads hide each other's latency. It bounds the
  // registers of a thread.
  static constexpr int kResidentBlocks = kHeads <= 3 ? 4 : kHeads == 4 ? 3 : 2;
};

// What a group of lanes has seen so far, for each head. A lane holds 8 elements of the query and of
// the sums; maximum and weight are the same in all lanes of the group.
template <int kHeads>
struct Stream {
  float query[kHeads][kChunkElements];  // turned for the current entry, times scale * log2(e)
  float sums[kHeads][kChunkElements];   // of exp2(score - maximum) * value
  float maximum[kHeads];
  float weight[kHeads];  // sum of exp2(score - maximum)
};

struct KeyRange {
  int begin;
  int end;
};

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

__device__ void LoadChunk(const float* source, float (&x)[kChunkElements]) {
  const auto* halves = reinterpret_cast<const float4*>(source);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    x[4 * i] = halves[i].x;
    x[4 * i + 1] = halves[i].y;
    x[4 * i + 2] = halves[i].z;
    x[4 * i + 3] = halves[i].w;
  }
}

// Afterwards the lane holds its 8 elements of each head's query, turned by the entry's delta.
template <int kHeadDim, int kHeads>
__device__ void TurnQuery(const cuda::AttentionParams& params,
                          const float* row_query,
                          int heads,
                          int delta,
                          Stream<kHeads>* stream) {
  const int first = static_cast<int>(threadIdx.x) % (kHeadDim / kChunkElements) * kChunkElements;
  const bool upper = first >= kHeadDim / 2;
  const int pair = upper ? first - kHeadDim / 2 : first;
  const float factor = params.scale * kLog2E;
  Angle angles[kChunkElements];
#pragma unroll
  for (int i = 0; i < kChunkElements; ++i) {
    angles[i] = AngleOf<kHeadDim>(params.rope, delta, pair + i);
  }
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    float low[kChunkElements] = {};
    float high[kChunkElements] = {};
    if (head < heads) {
      LoadChunk(row_query + head * kHeadDim + pair, low);
      LoadChunk(row_query + head * kHeadDim + pair + kHeadDim / 2, high);
    }
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) {
      const float2 turned = Turned(low[i], high[i], angles[i]);
      stream->query[head][i] = (upper ? turned.y : turned.x) * factor;
    }
  }
}

template <class T>
__device__ void Unpack(const Chunk& chunk, float (&x)[kChunkElements]) {
#pragma unroll
  for (int i = 0; i < kChunkElements / 2; ++i) {
    const float2 pair = UnpackPair<T>(chunk.words[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

// Adds keys [range.begin, range.end) of a segment to the streams of the block. Steps start at
// multiples of 16 of the segment.
template <int kHeadDim, class T, int kHeads>
__device__ void AddKeys(const cuda::KvPool& pool,
                        const int* blocks,
                        int kv_head,
                        KeyRange range,
                        Stream<kHeads>* stream) {
  using S = Shape<kHeadDim, kHeads>;
  const int lane_chunk = static_cast<int>(threadIdx.x) % S::kKeyLanes * kChunkBytes;
  const int lane_key = static_cast<int>(threadIdx.x) / S::kKeyLanes;
  const int first_step = range.begin / kBlockTokens * kBlockTokens;
  for (int step = first_step; step < range.end; step += S::kStepKeys) {
    // What the row must not see is not even read: it may be NaN, or beyond the block table.
    Chunk keys[S::kUnroll] = {};
    Chunk values[S::kUnroll] = {};
    bool seen[S::kUnroll];
#pragma unroll
    for (int u = 0; u < S::kUnroll; ++u) {
      const int key = step + u * S::kStreams + lane_key;
      seen[u] = key >= range.begin && key < range.end;
      if (seen[u]) {
        const std::byte* source = pool.layer + BlockOfToken(blocks, key) * pool.block_bytes +
                                  KeyOffset<kHeadDim>(kv_head, key) + lane_chunk;
        keys[u] = *reinterpret_cast<const Chunk*>(source);
        values[u] = *reinterpret_cast<const Chunk*>(source + ValueOffset<kHeadDim>(pool));
      }
    }

    float scores[S::kUnroll][kHeads];
#pragma unroll
    for (int u = 0; u < S::kUnroll; ++u) {
      float key[kChunkElements];
      Unpack<T>(keys[u], key);
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < kChunkElements; ++i) {
          dot = fmaf(stream->query[head][i], key[i], dot);
        }
#pragma unroll
        for (int lanes = S::kKeyLanes / 2; lanes > 0; lanes /= 2) {
          dot += __shfl_xor_sync(kAllLanes, dot, lanes);
        }
        scores[u][head] = seen[u] ? dot : kMinusInfinity;
      }
    }

#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      float maximum = stream->maximum[head];
#pragma unroll
      for (int u = 0; u < S::kUnroll; ++u) {
        maximum = fmaxf(maximum, scores[u][head]);
      }
      const float finite = FiniteMaximum(maximum);
      const float shrink = Exp2(stream->maximum[head] - finite);
      stream->maximum[head] = maximum;
      stream->weight[head] *= shrink;
#pragma unroll
      for (int u = 0; u < S::kUnroll; ++u) {
        scores[u][head] = Exp2(scores[u][head] - finite);
        stream->weight[head] += scores[u][head];
      }
#pragma unroll
      for (int i = 0; i < kChunkElements; ++i) {
        stream->sums[head][i] *= shrink;
      }
    }

#pragma unroll
    for (int u = 0; u < S::kUnroll; ++u) {
      float value[kChunkElements];
      Unpack<T>(values[u], value);
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
#pragma unroll
        for (int i = 0; i < kChunkElements; ++i) {
          stream->sums[head][i] = fmaf(scores[u][head], value[i], stream->sums[head][i]);
        }
      }
    }
  }
}

// Afterwards every lane holds the sums of its elements over all streams of its warp.
template <int kHeadDim, int kHeads>
__device__ void MergeInWarp(Stream<kHeads>* stream) {
#pragma unroll
  for (int lanes = Shape<kHeadDim, kHeads>::kKeyLanes; lanes < kLanes; lanes *= 2) {
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      const float maximum =
          fmaxf(stream->maximum[head], __shfl_xor_sync(kAllLanes, stream->maximum[head], lanes));
      const float shrink = Exp2(stream->maximum[head] - FiniteMaximum(maximum));
      stream->maximum[head] = maximum;
      stream->weight[head] *= shrink;
      stream->weight[head] += __shfl_xor_sync(kAllLanes, stream->weight[head], lanes);
#pragma unroll
      for (int i = 0; i < kChunkElements; ++i) {
        stream->sums[head][i] *= shrink;
        stream->sums[head][i] += __shfl_xor_sync(kAllLanes, stream->sums[head][i], lanes);
      }
    }
  }
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
__device__ void ShareResults(const Stream<kHeads>& stream, WarpResults<kHeadDim, kHeads>* results) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (lane < Shape<kHeadDim, kHeads>::kKeyLanes) {
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
__global__ void __launch_bounds__(kThreads, (Shape<kHeadDim, kHeads>::kResidentBlocks))
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

  Stream<kHeads> stream;
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
