#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.cuh"
#include "kernels/cuda/row_kernels.h"
#include "kernels/cuda/row_runs.cuh"

// Rotates keys and writes keys and values into their blocks, in one pass. A thread takes eight
// pairs (i, i + D/2) of one key of one head and the same places of its value: it reads 4 + 4 and
// writes 2 + 2 runs of 16 bytes, and nothing is read twice but the table of angles, which every
// head of a row shares. Any even D; 16-byte accesses where it is a multiple of 16. Threads are
// numbered through (row, head, run); bound by memory.
namespace baton::BATON_CUDA_NAMESPACE {
namespace {

using cuda::RotateAndWriteKvParams;

constexpr int kThreads = 128;
constexpr int kBlockTokens = 16;  // of common/block_hash.h, which no kernel includes

struct Alignment {
  bool key;
  bool value;
  bool rope;
  bool pool;
};

// The two halves of a rotated key, in place.
__device__ inline void Rotate(const RotateAndWriteKvParams& params,
                              int row,
                              int i,
                              bool aligned,
                              float (&low)[kRun],
                              float (&high)[kRun]) {
  const float* angles =
      params.rope + static_cast<std::int64_t>(params.rotation[row]) * params.head_dim;
  float first[kRun];   // cosine and sine of four pairs
  float second[kRun];  // of the next four
  LoadFloats(angles, 2 * i, params.head_dim, aligned, first);
  LoadFloats(angles, 2 * i + kRun, params.head_dim, aligned, second);
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    const float cosine = j < 4 ? first[j % 4 * 2] : second[j % 4 * 2];
    const float sine = j < 4 ? first[j % 4 * 2 + 1] : second[j % 4 * 2 + 1];
    const float a = low[j];
    const float b = high[j];
    low[j] = a * cosine - b * sine;
    high[j] = a * sine + b * cosine;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    RotateAndWriteKvKernel(RotateAndWriteKvParams params, Alignment aligned) {
  const int head_dim = params.head_dim;
  const int half = head_dim / 2;
  const int runs = (half + kRun - 1) / kRun;
  const int per_row = params.pool.kv_heads * runs;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int row = static_cast<int>(item / per_row);
  if (row >= params.rows) {
    return;
  }
  const int block = params.block[row];
  if (block < 0) {
    return;
  }
  const int head = static_cast<int>(item % per_row) / runs;
  const int i = static_cast<int>(item % per_row) % runs * kRun;

  const float* key = params.key + row * params.key_stride + head * head_dim;
  const float* value = params.value + row * params.value_stride + head * head_dim;
  float low[kRun];
  float high[kRun];
  LoadFloats(key, i, half, aligned.key, low);
  LoadFloats(key + half, i, half, aligned.key, high);
  Rotate(params, row, i, aligned.rope, low, high);

  const std::int64_t layer_half = static_cast<std::int64_t>(params.pool.kv_heads) * kBlockTokens *
                                  head_dim;  // elements of all keys of a block
  auto* keys = reinterpret_cast<T*>(params.pool.layer + block * params.pool.block_bytes) +
               (head * kBlockTokens + params.offset[row]) * head_dim;
  StoreElements<T>(keys, i, half, aligned.pool, low);
  StoreElements<T>(keys + half, i, half, aligned.pool, high);

  LoadFloats(value, i, half, aligned.value, low);
  LoadFloats(value + half, i, half, aligned.value, high);
  T* values = keys + layer_half;
  StoreElements<T>(values, i, half, aligned.pool, low);
  StoreElements<T>(values + half, i, half, aligned.pool, high);
}

}  // namespace

cuda::LaunchCode LaunchRotateAndWriteKv(const RotateAndWriteKvParams& params,
                                        cuda::StreamHandle stream) {
  const int runs = (params.head_dim / 2 + kRun - 1) / kRun;
  const std::int64_t items = static_cast<std::int64_t>(params.rows) * params.pool.kv_heads * runs;
  if (items == 0) {
    return 0;
  }
  const auto kernel = WithElement(
      params.element, [](auto element) { return RotateAndWriteKvKernel<decltype(element)>; });
  const bool whole_runs = params.head_dim % (2 * kRun) == 0;
  const Alignment aligned{
      .key = whole_runs && Aligned16(params.key, params.key_stride, 4),
      .value = whole_runs && Aligned16(params.value, params.value_stride, 4),
      .rope = whole_runs && Aligned16(params.rope, 0, 4),
      .pool = whole_runs && Aligned16(params.pool.layer, params.pool.block_bytes, 1)};
  return Launch(kernel, static_cast<unsigned>((items + kThreads - 1) / kThreads), kThreads, 0,
                stream, params, aligned);
}

}  // namespace baton::BATON_CUDA_NAMESPACE
