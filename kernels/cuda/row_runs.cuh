#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"

// Reading and writing rows eight elements at a time: one or two accesses of 16 bytes where the
// address allows it, single elements where it does not or where the row ends. Which of the two is
// taken never changes a value.
namespace baton::BATON_CUDA_NAMESPACE {

// Elements that one thread takes at once: 16 bytes of a 16-bit type.
inline constexpr int kRun = 8;

// Whether rows of elements of `element_bytes` that start at `data`, `stride` elements apart, all
// start at multiples of 16 bytes.
inline bool Aligned16(const void* data, std::int64_t stride, int element_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride * element_bytes % 16 == 0;
}

// Floats [i, i + 8) of a row; zeros from `width` on. `aligned`: the row starts at 16 bytes. i is a
// multiple of 8.
__device__ inline void LoadFloats(
    const float* row, int i, int width, bool aligned, float (&x)[kRun]) {
  if (aligned && i + kRun <= width) {
    const float4 a = reinterpret_cast<const float4*>(row + i)[0];
    const float4 b = reinterpret_cast<const float4*>(row + i)[1];
    x[0] = a.x;
    x[1] = a.y;
    x[2] = a.z;
    x[3] = a.w;
    x[4] = b.x;
    x[5] = b.y;
    x[6] = b.z;
    x[7] = b.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    x[j] = i + j < width ? row[i + j] : 0.0f;
  }
}

__device__ inline void StoreFloats(
    float* row, int i, int width, bool aligned, const float (&x)[kRun]) {
  if (aligned && i + kRun <= width) {
    reinterpret_cast<float4*>(row + i)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(row + i)[1] = make_float4(x[4], x[5], x[6], x[7]);
    return;
  }
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    if (i + j < width) {
      row[i + j] = x[j];
    }
  }
}

template <class T>
__device__ inline void LoadElements(
    const T* row, int i, int width, bool aligned, float (&x)[kRun]) {
  if (aligned && i + kRun <= width) {
    const uint4 words = *reinterpret_cast<const uint4*>(row + i);
    const unsigned pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int j = 0; j < kRun; j += 2) {
      const float2 pair = UnpackPair<T>(pairs[j / 2]);
      x[j] = pair.x;
      x[j + 1] = pair.y;
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    x[j] = i + j < width ? ToFloat(row[i + j]) : 0.0f;
  }
}

// Rounds to nearest even and writes [i, i + 8), nothing from `width` on.
template <class T>
__device__ inline void StoreElements(
    T* row, int i, int width, bool aligned, const float (&x)[kRun]) {
  if (aligned && i + kRun <= width) {
    uint4 words;
    words.x = PackPair<T>(x[0], x[1]);
    words.y = PackPair<T>(x[2], x[3]);
    words.z = PackPair<T>(x[4], x[5]);
    words.w = PackPair<T>(x[6], x[7]);
    *reinterpret_cast<uint4*>(row + i) = words;
    return;
  }
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    if (i + j < width) {
      row[i + j] = FromFloat<T>(x[j]);
    }
  }
}

}  // namespace baton::BATON_CUDA_NAMESPACE
