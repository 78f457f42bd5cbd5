#pragma once

#include "kernels/cuda/launch.cuh"

// Reductions and prefix sums over a block, always in the same order: a result depends on the values
// and the block's size alone. Every function is called by all threads of the block or warp.
namespace baton::BATON_CUDA_NAMESPACE {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// The combination of all 32 lanes, the same in every lane if `combine` does not mind which side is
// which.
template <typename T, typename Combine>
__device__ inline T ReduceWarp(T x, const Combine& combine) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x = combine(x, __shfl_xor_sync(kAllLanes, x, distance));
  }
  return x;
}

// The combination of all threads, in every thread: a tree in each warp, then warp by warp.
// kThreads is the size of the block, a multiple of 32. shared: [kThreads / 32], free again when
// the call returns.
template <int kThreads, typename T, typename Combine>
__device__ inline T ReduceBlock(T x, T* shared, const Combine& combine) {
  x = ReduceWarp(x, combine);
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = x;
  }
  __syncthreads();
  T result = shared[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / kWarp; ++warp) {
    result = combine(result, shared[warp]);
  }
  __syncthreads();  // all have read `shared`
  return result;
}

// The sum of this thread's value and those of all threads before it. shared: as above.
template <int kThreads, typename T>
__device__ inline T InclusiveSum(T x, T* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int own_warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T before = __shfl_up_sync(kAllLanes, x, static_cast<unsigned>(distance));
    x += lane >= distance ? before : T{0};
  }
  if (lane == kWarp - 1) {
    shared[own_warp] = x;
  }
  __syncthreads();
  T before = 0;
  for (int warp = 0; warp < own_warp; ++warp) {
    before += shared[warp];
  }
  __syncthreads();  // all have read `shared`
  return before + x;
}

}  // namespace baton::BATON_CUDA_NAMESPACE
