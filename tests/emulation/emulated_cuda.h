#pragma once

// What kernels/cuda/launch.cuh stands on when the host's compiler compiles a .cu file: the part of
// CUDA's names that Baton's kernels use. It may be included by kernels only: it defines names
// without a namespace.
//
// Shared arrays are written `alignas(16) __shared__ float tile[...]`: one block runs at a time in a
// process, so they are static. (Not thread_local: as much of that as all kernels' arrays together
// is taken from the stack of every thread of the program, and a library that asks for small stacks
// gets no thread at all.) They keep what the block before left in them; memory of DynamicShared()
// starts as NaN.

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/emulation/device_functions.h"
#include "tests/emulation/emulated_ptx.h"
#include "tests/emulation/launch_queue.h"
#include "tests/emulation/runtime.h"
#include "tests/emulation/vector_types.h"
#include "tests/emulation/warp_functions.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (::baton::emulated::current_thread->thread_index)
#define blockIdx (::baton::emulated::current_thread->block_index)
#define blockDim (::baton::emulated::current_thread->block_size)
#define gridDim (::baton::emulated::current_thread->grid_size)
inline constexpr int warpSize = 32;

// Functions of one name for both compilers, see kernels/cuda/launch.cuh.
namespace baton::BATON_CUDA_NAMESPACE {

template <class T>
T* DynamicShared() {
  return reinterpret_cast<T*>(emulated::current_thread->dynamic_shared);
}

template <class... P>
cuda::LaunchCode Launch(void (*kernel)(P...),
                        dim3 grid,
                        dim3 block,
                        std::size_t shared_bytes,
                        cuda::StreamHandle stream,
                        std::type_identity_t<P>... arguments) {
  const int code = emulated::CheckLaunch(grid, block, shared_bytes);
  if (code != 0) {
    return code;
  }
  using Call = std::pair<void (*)(P...), std::tuple<P...>>;
  auto work = [call = Call(kernel, {arguments...}), grid, block, shared_bytes] {
    const auto body = [](const void* context) {
      const auto* const the_call = static_cast<const Call*>(context);
      std::apply(the_call->first, the_call->second);
    };
    emulated::RunGrid(grid, block, shared_bytes, body, &call);
  };
  emulated::Enqueue(stream, std::move(work));
  return 0;
}

}  // namespace baton::BATON_CUDA_NAMESPACE
