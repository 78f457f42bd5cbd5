#pragma once

// What every .cu file includes in place of CUDA's own headers. nvcc compiles it for GPUs. The
// host's compiler compiles the same file for the emulator when BATON_EMULATE_CUDA names the header
// that stands in for CUDA's.
//
// Kernels and their launch functions live in namespace baton::BATON_CUDA_NAMESPACE, so that one
// program can hold both compilations. Both have, beside CUDA's names:
//
//   T* DynamicShared<T>()      in a kernel: the bytes that the launch asked for, aligned to 128
//   LaunchCode Launch(kernel, grid, block, shared_bytes, stream, arguments...)
//
// Shared arrays of a fixed size are written `alignas(16) __shared__ T name[...]`.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch_types.h"

#ifdef BATON_EMULATE_CUDA

#define BATON_CUDA_NAMESPACE emulated_kernels
#include BATON_EMULATE_CUDA

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#define BATON_CUDA_NAMESPACE gpu_kernels

namespace baton::BATON_CUDA_NAMESPACE {

template <class T>
__device__ __forceinline__ T* DynamicShared() {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  return reinterpret_cast<T*>(dynamic_shared);
}

// More dynamic shared memory than this has to be asked for.
inline constexpr std::size_t kPlainSharedBytes = 48 * 1024;

// Errors of this launch only: sizes, shared memory, the image. Thread-safe.
template <class... P>
cuda::LaunchCode Launch(void (*kernel)(P...),
                        dim3 grid,
                        dim3 block,
                        std::size_t shared_bytes,
                        cuda::StreamHandle stream,
                        std::type_identity_t<P>... arguments) {
  if (shared_bytes > kPlainSharedBytes) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(shared_bytes));
    if (error != cudaSuccess) {
      return error;
    }
  }
  void* pointers[] = {&arguments..., nullptr};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers,
                          shared_bytes, reinterpret_cast<cudaStream_t>(stream));
}

}  // namespace baton::BATON_CUDA_NAMESPACE

#endif
