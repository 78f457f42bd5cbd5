#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_kernels.h"
#include "kernels/cuda/row_runs.cuh"

// Embedding, normalisation and activation. Each row is read once and written once: bound by memory,
// and by the launch for small batches. A block is one row, or a piece of one where no sum runs over
// it. A thread takes eight elements at a time, so that neighbours in a warp read and write runs of
// 16 bytes next to each other.
namespace baton::BATON_CUDA_NAMESPACE {
namespace {

using cuda::EmbedParams;
using cuda::RmsNormParams;
using cuda::SiluMultiplyParams;

constexpr int kRunsOfPiece = 128;  // threads of a block of embed and silu_multiply, a run each

// Runs of a row that a thread of rms_norm keeps between the two looks: rows up to 4096 wide are
// read once, of wider ones the rest comes from the cache. Its blocks have 64, 128 or 256 threads,
// by the width alone: idle threads would keep other rows off the multiprocessor.
constexpr int kKeptRuns = 2;

template <class T>
__global__ void __launch_bounds__(kRunsOfPiece)
    EmbedKernel(EmbedParams params, bool aligned_in, bool aligned_out) {
  const int i = static_cast<int>(blockIdx.y * kRunsOfPiece + threadIdx.x) * kRun;
  if (i >= params.width) {
    return;
  }
  const int token = params.tokens[blockIdx.x];
  float x[kRun] = {};
  if (token >= 0) {
    const auto* embedding =
        static_cast<const T*>(params.embedding) + static_cast<std::int64_t>(token) * params.width;
    LoadElements<T>(embedding, i, params.width, aligned_in, x);
  }
  StoreFloats(params.hidden + blockIdx.x * params.hidden_stride, i, params.width, aligned_out, x);
}

template <class T, class Params>
__device__ inline T* OutputRow(const Params& params) {
  return static_cast<T*>(params.output) + blockIdx.x * params.output_stride;
}

// x * inverse * weight, rounded into [i, i + 8) of the output.
template <class T>
__device__ inline void Scale(const RmsNormParams& params,
                             int i,
                             bool aligned_weight,
                             bool aligned_out,
                             float inverse,
                             float (&x)[kRun]) {
  float weight[kRun];
  LoadFloats(params.weight, i, params.width, aligned_weight, weight);
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    x[j] = x[j] * inverse * weight[j];
  }
  StoreElements(OutputRow<T>(params), i, params.width, aligned_out, x);
}

__device__ inline float AddSquares(float sum, const float (&x)[kRun]) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    sum += x[j] * x[j];
  }
  return sum;
}

// Thread t sums runs t, t + kThreads, ... in order; the block then adds the threads up by a fixed
// tree.
template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads)
    RmsNormKernel(RmsNormParams params, bool aligned_in, bool aligned_weight, bool aligned_out) {
  __shared__ float sums[kThreads / kWarp];
  constexpr int kStep = kThreads * kRun;
  const int first = static_cast<int>(threadIdx.x) * kRun;
  const int taken =
      params.take_rows == nullptr ? static_cast<int>(blockIdx.x) : params.take_rows[blockIdx.x];
  if (taken < 0) {  // the whole block: no barrier is missed
    const float zeros[kRun] = {};
    for (int i = first; i < params.width; i += kStep) {
      StoreElements(OutputRow<T>(params), i, params.width, aligned_out, zeros);
    }
    return;
  }
  const float* input = params.input + taken * params.input_stride;

  float kept[kKeptRuns][kRun];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kKeptRuns; ++k) {
    LoadFloats(input, first + k * kStep, params.width, aligned_in, kept[k]);
  }
#pragma unroll
  for (int k = 0; k < kKeptRuns; ++k) {
    sum = AddSquares(sum, kept[k]);
  }
  for (int i = first + kKeptRuns * kStep; i < params.width; i += kStep) {
    float x[kRun];
    LoadFloats(input, i, params.width, aligned_in, x);
    sum = AddSquares(sum, x);
  }
  sum = ReduceBlock<kThreads>(sum, sums, [](float a, float b) { return a + b; });
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(params.width) + params.epsilon);

#pragma unroll
  for (int k = 0; k < kKeptRuns; ++k) {
    if (first + k * kStep < params.width) {
      Scale<T>(params, first + k * kStep, aligned_weight, aligned_out, inverse, kept[k]);
    }
  }
  for (int i = first + kKeptRuns * kStep; i < params.width; i += kStep) {
    float x[kRun];
    LoadFloats(input, i, params.width, aligned_in, x);
    Scale<T>(params, i, aligned_weight, aligned_out, inverse, x);
  }
}

template <class T>
__global__ void __launch_bounds__(kRunsOfPiece) SiluMultiplyKernel(SiluMultiplyParams params,
                                                                   bool aligned_gate,
                                                                   bool aligned_up,
                                                                   bool aligned_out) {
  const int i = static_cast<int>(blockIdx.y * kRunsOfPiece + threadIdx.x) * kRun;
  if (i >= params.width) {
    return;
  }
  const float* row = params.gate_up + blockIdx.x * params.gate_up_stride;
  float gate[kRun];
  float up[kRun];
  LoadFloats(row, i, params.width, aligned_gate, gate);
  LoadFloats(row + params.width, i, params.width, aligned_up, up);
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    up[j] *= gate[j] / (1.0f + expf(-gate[j]));
  }
  StoreElements(OutputRow<T>(params), i, params.width, aligned_out, up);
}

dim3 RowsAndPieces(int rows, int width) {
  constexpr int kPiece = kRunsOfPiece * kRun;
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>((width + kPiece - 1) / kPiece));
}

}  // namespace

cuda::LaunchCode LaunchEmbed(const EmbedParams& params, cuda::StreamHandle stream) {
  if (params.rows == 0) {
    return 0;
  }
  const auto kernel =
      WithElement(params.element, [](auto element) { return EmbedKernel<decltype(element)>; });
  return Launch(kernel, RowsAndPieces(params.rows, params.width), kRunsOfPiece, 0, stream, params,
                Aligned16(params.embedding, params.width, 2),
                Aligned16(params.hidden, params.hidden_stride, 4));
}

cuda::LaunchCode LaunchRmsNorm(const RmsNormParams& params, cuda::StreamHandle stream) {
  if (params.rows == 0) {
    return 0;
  }
  const int runs = (params.width + kRun - 1) / kRun;
  const int threads = runs <= 64 ? 64 : runs <= 128 ? 128 : 256;
  const auto kernel = WithElement(params.element, [threads](auto element) {
    using T = decltype(element);
    return threads == 64    ? RmsNormKernel<T, 64>
           : threads == 128 ? RmsNormKernel<T, 128>
                            : RmsNormKernel<T, 256>;
  });
  return Launch(kernel, static_cast<unsigned>(params.rows), threads, 0, stream, params,
                Aligned16(params.input, params.input_stride, 4), Aligned16(params.weight, 0, 4),
                Aligned16(params.output, params.output_stride, 2));
}

cuda::LaunchCode LaunchSiluMultiply(const SiluMultiplyParams& params, cuda::StreamHandle stream) {
  if (params.rows == 0) {
    return 0;
  }
  const auto kernel = WithElement(
      params.element, [](auto element) { return SiluMultiplyKernel<decltype(element)>; });
  return Launch(kernel, RowsAndPieces(params.rows, params.width), kRunsOfPiece, 0, stream, params,
                Aligned16(params.gate_up, params.gate_up_stride, 4),
                Aligned16(params.gate_up + params.width, params.gate_up_stride, 4),
                Aligned16(params.output, params.output_stride, 2));
}

}  // namespace baton::BATON_CUDA_NAMESPACE
