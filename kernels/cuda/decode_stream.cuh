#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_device.cuh"

// The online softmax of a group of lanes over its share of a row's keys: what decode attention does
// with every key.
namespace baton::BATON_CUDA_NAMESPACE {

template <int kHeadDim, int kHeads>
struct DecodeShape {
  static constexpr int kKeyLanes = kHeadDim / kChunkElements;  // lanes that hold one key
  static constexpr int kStreams = kThreads / kKeyLanes;
  static constexpr int kUnroll = kHeads <= 4 ? 4 : 2;  // keys of a stream in flight
  static constexpr int kStepKeys = kStreams * kUnroll;
  // Blocks that a multiprocessor should hold: their loads hide each other's latency. It bounds the
  // registers of a thread.
  static constexpr int kResidentBlocks = kHeads <= 3 ? 4 : kHeads == 4 ? 3 : 2;
};

// What a group of lanes has seen so far, for each head. A lane holds 8 elements of the query and of
// the sums; maximum and weight are the same in all lanes of the group.
template <int kHeads>
struct DecodeStream {
  float query[kHeads][kChunkElements];  // turned for the current entry, times scale * log2(e)
  float sums[kHeads][kChunkElements];   // of exp2(score - maximum) * value
  float maximum[kHeads];
  float weight[kHeads];  // sum of exp2(score - maximum)
};

struct KeyRange {
  int begin;
  int end;
};

__device__ inline void LoadChunk(const float* source, float (&x)[kChunkElements]) {
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
                          DecodeStream<kHeads>* stream) {
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
                        DecodeStream<kHeads>* stream) {
  using S = DecodeShape<kHeadDim, kHeads>;
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
__device__ void MergeInWarp(DecodeStream<kHeads>* stream) {
#pragma unroll
  for (int lanes = DecodeShape<kHeadDim, kHeads>::kKeyLanes; lanes < kLanes; lanes *= 2) {
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

}  // namespace baton::BATON_CUDA_NAMESPACE
