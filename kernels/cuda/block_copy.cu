#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.cuh"
#include "kernels/cuda/row_kernels.h"

// Copies pieces of blocks into one contiguous buffer and back, 16 bytes a thread and access, four
// accesses in flight. Grid (piece, part of it); bound by memory, or by the bus where the buffer is
// pinned host memory.
namespace baton::BATON_CUDA_NAMESPACE {
namespace {

using cuda::BlockCopyParams;

constexpr int kThreads = 128;
constexpr int kAccesses = 4;
constexpr std::int64_t kVectorsOfPart = kThreads * kAccesses;  // 8 KiB

template <bool kGather>
__global__ void __launch_bounds__(kThreads) BlockCopyKernel(BlockCopyParams params) {
  const std::int64_t vectors = params.piece_bytes / static_cast<int>(sizeof(uint4));
  auto* piece = reinterpret_cast<uint4*>(params.pieces[blockIdx.x]);
  auto* staged = reinterpret_cast<uint4*>(params.staging) + blockIdx.x * vectors;
  const uint4* source = kGather ? piece : staged;
  uint4* destination = kGather ? staged : piece;
  const std::int64_t first = blockIdx.y * kVectorsOfPart + threadIdx.x;
  uint4 words[kAccesses];
#pragma unroll
  for (int k = 0; k < kAccesses; ++k) {
    if (first + k * kThreads < vectors) {
      words[k] = source[first + k * kThreads];
    }
  }
#pragma unroll
  for (int k = 0; k < kAccesses; ++k) {
    if (first + k * kThreads < vectors) {
      destination[first + k * kThreads] = words[k];
    }
  }
}

cuda::LaunchCode LaunchCopy(void (*kernel)(BlockCopyParams),
                            const BlockCopyParams& params,
                            cuda::StreamHandle stream) {
  const std::int64_t vectors = params.piece_bytes / static_cast<int>(sizeof(uint4));
  if (params.count == 0 || vectors == 0) {
    return 0;
  }
  const dim3 grid(static_cast<unsigned>(params.count),
                  static_cast<unsigned>((vectors + kVectorsOfPart - 1) / kVectorsOfPart));
  return Launch(kernel, grid, kThreads, 0, stream, params);
}

}  // namespace

cuda::LaunchCode LaunchGatherBlocks(const BlockCopyParams& params, cuda::StreamHandle stream) {
  return LaunchCopy(BlockCopyKernel<true>, params, stream);
}

cuda::LaunchCode LaunchScatterBlocks(const BlockCopyParams& params, cuda::StreamHandle stream) {
  return LaunchCopy(BlockCopyKernel<false>, params, stream);
}

}  // namespace baton::BATON_CUDA_NAMESPACE
