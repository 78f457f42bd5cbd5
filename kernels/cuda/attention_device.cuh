#pragma once

#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.cuh"
#include "kernels/cuda/planted_bugs.cuh"
#include "kernels/cuda/ptx.cuh"

// What the two attention kernels share: where keys lie, how a query is turned, the running softmax.
namespace baton::BATON_CUDA_NAMESPACE {

inline constexpr int kBlockTokens = 16;
inline constexpr int kLanes = 32;
inline constexpr int kWarps = 4;  // of a block of either kernel
inline constexpr int kThreads = kWarps * kLanes;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kElementBytes = 2;
inline constexpr int kChunkBytes = 16;  // what one lane loads at once
inline constexpr int kChunkElements = kChunkBytes / kElementBytes;
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kMinusInfinity = -__builtin_huge_valf();
inline constexpr cuda::LaunchCode kInvalidParams = 1;  // cudaErrorInvalidValue

struct alignas(kChunkBytes) Chunk {
  unsigned words[4];
};

inline bool ValidParams(const cuda::AttentionParams& params) {
  const int kv_heads = params.pool.kv_heads;
  return (params.head_dim == 64 || params.head_dim == 128) && kv_heads > 0 && params.heads > 0 &&
         params.heads % kv_heads == 0 && params.query_stride % 4 == 0 &&
         params.output_stride % 2 == 0;
}

// The block of a token of a segment whose part of the block table starts at `blocks`.
// REQUIRES: some row sees the token; the table may end behind the last block of a visible token.
__device__ inline int BlockOfToken(const int* blocks, int token) {
  return blocks[token / kBlockTokens + kPlantPastBlockTable];
}

// Offset of the key of `token` from the start of the layer in its block; its value lies
// ValueOffset() further on.
template <int kHeadDim>
__device__ inline std::int64_t KeyOffset(int kv_head, int token) {
  return static_cast<std::int64_t>((kv_head * kBlockTokens + token % kBlockTokens) * kHeadDim) *
         kElementBytes;
}
template <int kHeadDim>
__device__ inline std::int64_t ValueOffset(const cuda::KvPool& pool) {
  return static_cast<std::int64_t>(pool.kv_heads) * kBlockTokens * kHeadDim * kElementBytes;
}

struct Angle {
  float cosine;
  float sine;
};

// The angle by which pair `pair` turns over `delta` positions.
template <int kHeadDim>
__device__ inline Angle AngleOf(const float* rope, int delta, int pair) {
  const int distance = delta < 0 ? -delta : delta;
  const auto* angles = reinterpret_cast<const float2*>(rope);
  const float2 angle = angles[static_cast<std::int64_t>(distance) * (kHeadDim / 2) + pair];
  return {angle.x, delta < 0 ? -angle.y : angle.y};
}

// `low` and `high` are elements i and i + D/2 of a row.
__device__ inline float2 Turned(float low, float high, Angle angle) {
  return {low * angle.cosine - high * angle.sine, low * angle.sine + high * angle.cosine};
}

// The elements of a head's output, two in a word.
template <int kHeadDim>
__device__ inline unsigned* OutputWords(const cuda::AttentionParams& params, int row, int head) {
  return reinterpret_cast<unsigned*>(static_cast<std::uint16_t*>(params.output) +
                                     row * params.output_stride + head * kHeadDim);
}

// What scores are compared with, so that a stream that has seen no key yet has weights of 0 and not
// NaN: exp2(-inf - 0) is 0, exp2(-inf - -inf) is not.
__device__ inline float FiniteMaximum(float maximum) {
  return maximum == kMinusInfinity ? 0.0f : maximum;
}

}  // namespace baton::BATON_CUDA_NAMESPACE
