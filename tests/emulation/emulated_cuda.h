#pragma once

// What kernels/cuda/launch.cuh stands on when the host's compiler compiles a .cu file: the part of
// CUDA's names that Baton's kernels use. It may be included by kernels only: it defines names
// without a namespace.
//
// Shared arrays are written `alignas(16) __shared__ float tile[...]`: one block runs at a time on
// an OS thread, so they are thread_local. They keep what the block before left in them; memory of
// DynamicShared() starts as NaN.

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/emulation/emulated_ptx.h"
#include "tests/emulation/launch_queue.h"
#include "tests/emulation/runtime.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (::baton::emulated::current_thread->thread_index)
#define blockIdx (::baton::emulated::current_thread->block_index)
#define blockDim (::baton::emulated::current_thread->block_size)
#define gridDim (::baton::emulated::current_thread->grid_size)
inline constexpr int warpSize = 32;

// glibc has functions of these names.
#define __expf(x) ::baton::emulated::FastExp(x)
#define __exp10f(x) ::baton::emulated::FastExp10(x)
#define __logf(x) ::baton::emulated::FastLog(x)
#define __log2f(x) ::baton::emulated::FastLog2(x)
#define __sinf(x) ::baton::emulated::FastSin(x)
#define __cosf(x) ::baton::emulated::FastCos(x)
#define __powf(x, y) ::baton::emulated::FastPow(x, y)

namespace baton::emulated {

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline float FastExp(float x) {
  return std::exp(x);
}
inline float FastExp10(float x) {
  return std::pow(10.0f, x);
}
inline float FastLog(float x) {
  return std::log(x);
}
inline float FastLog2(float x) {
  return std::log2(x);
}
inline float FastSin(float x) {
  return std::sin(x);
}
inline float FastCos(float x) {
  return std::cos(x);
}
inline float FastPow(float x, float y) {
  return std::pow(x, y);
}

// --- warps

// What a lane brings to an exchange and takes from it. Filled and emptied by the lane, moved by the
// runtime.
struct Exchange {
  std::uint64_t value = 0;
  int source_lane = 0;
  std::uint64_t result = 0;
};

// The functions below fill every result. `mask` has the lanes that came: those of the kernel's mask
// that have not ended.

// result = value of source_lane; poison when that lane did not come, as CUDA leaves it undefined.
void CompleteShuffle(void* const* operands, std::uint32_t mask);
// result = the lanes whose value is not 0.
void CompleteBallot(void* const* operands, std::uint32_t mask);
// result = the lanes whose value equals this lane's.
void CompleteMatch(void* const* operands, std::uint32_t mask);
void CompleteReduceAdd(void* const* operands, std::uint32_t mask);
void CompleteReduceMinUnsigned(void* const* operands, std::uint32_t mask);
void CompleteReduceMaxUnsigned(void* const* operands, std::uint32_t mask);
void CompleteReduceMinSigned(void* const* operands, std::uint32_t mask);
void CompleteReduceMaxSigned(void* const* operands, std::uint32_t mask);
void CompleteReduceAnd(void* const* operands, std::uint32_t mask);
void CompleteReduceOr(void* const* operands, std::uint32_t mask);
void CompleteReduceXor(void* const* operands, std::uint32_t mask);

template <class T>
concept Shuffled = std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t);

template <Shuffled T>
T Shuffle(unsigned mask, T value, int source_lane, const std::source_location& where) {
  Exchange exchange;
  std::memcpy(&exchange.value, &value, sizeof(T));
  exchange.source_lane = source_lane;
  WarpCollective(mask, &CompleteShuffle, &exchange, where);
  T result;
  std::memcpy(&result, &exchange.result, sizeof(T));
  return result;
}

inline std::uint64_t Meet(unsigned mask,
                          std::uint64_t value,
                          Complete complete,
                          const std::source_location& where) {
  Exchange exchange{.value = value};
  WarpCollective(mask, complete, &exchange, where);
  return exchange.result;
}

}  // namespace baton::emulated

using baton::emulated::dim3;
using baton::emulated::float2;
using baton::emulated::float4;
using baton::emulated::int2;
using baton::emulated::int4;
using baton::emulated::uint2;
using baton::emulated::uint3;
using baton::emulated::uint4;

inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline int2 make_int2(int x, int y) {
  return {x, y};
}
inline int4 make_int4(int x, int y, int z, int w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

// The place of a call is part of a barrier: threads that wait at two different ones diverge.
using EmulatedPlace = std::source_location;

inline void __syncthreads(EmulatedPlace place = EmulatedPlace::current()) {
  baton::emulated::BlockBarrier(false, place);
}
inline int __syncthreads_count(int vote, EmulatedPlace place = EmulatedPlace::current()) {
  return baton::emulated::BlockBarrier(vote != 0, place);
}
inline int __syncthreads_or(int vote, EmulatedPlace place = EmulatedPlace::current()) {
  return baton::emulated::BlockBarrier(vote != 0, place) > 0 ? 1 : 0;
}
inline int __syncthreads_and(int vote, EmulatedPlace place = EmulatedPlace::current()) {
  return baton::emulated::BlockBarrier(vote == 0, place) == 0 ? 1 : 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu,
                       EmulatedPlace place = EmulatedPlace::current()) {
  baton::emulated::WarpBarrier(mask, place);
}

// A shuffle within groups of `width` lanes, a power of two, as CUDA's.
template <class T>
T __shfl_sync(unsigned mask,
              T value,
              int source,
              int width = 32,
              EmulatedPlace place = EmulatedPlace::current()) {
  const int lane = baton::emulated::current_thread->lane;
  const int first = lane & ~(width - 1);
  return baton::emulated::Shuffle(mask, value, first + (source & (width - 1)), place);
}
template <class T>
T __shfl_xor_sync(unsigned mask,
                  T value,
                  int lanes,
                  int width = 32,
                  EmulatedPlace place = EmulatedPlace::current()) {
  const int lane = baton::emulated::current_thread->lane;
  const int source = lane ^ lanes;
  const bool inside =
      source <= (lane | (width - 1));  // groups before this one can be read, as on a GPU
  return baton::emulated::Shuffle(mask, value, inside ? source : lane, place);
}
template <class T>
T __shfl_up_sync(unsigned mask,
                 T value,
                 unsigned lanes,
                 int width = 32,
                 EmulatedPlace place = EmulatedPlace::current()) {
  const int lane = baton::emulated::current_thread->lane;
  const int source = lane - static_cast<int>(lanes);
  const bool inside = source >= (lane & ~(width - 1));
  return baton::emulated::Shuffle(mask, value, inside ? source : lane, place);
}
template <class T>
T __shfl_down_sync(unsigned mask,
                   T value,
                   unsigned lanes,
                   int width = 32,
                   EmulatedPlace place = EmulatedPlace::current()) {
  const int lane = baton::emulated::current_thread->lane;
  const int source = lane + static_cast<int>(lanes);
  const bool inside = source <= (lane | (width - 1));
  return baton::emulated::Shuffle(mask, value, inside ? source : lane, place);
}

inline unsigned __ballot_sync(unsigned mask,
                              int vote,
                              EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, vote != 0 ? 1 : 0, &baton::emulated::CompleteBallot, place));
}
inline int __any_sync(unsigned mask, int vote, EmulatedPlace place = EmulatedPlace::current()) {
  return __ballot_sync(mask, vote, place) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int vote, EmulatedPlace place = EmulatedPlace::current()) {
  return __ballot_sync(mask, vote == 0 ? 1 : 0, place) == 0 ? 1 : 0;
}
template <baton::emulated::Shuffled T>
unsigned __match_any_sync(unsigned mask, T value, EmulatedPlace place = EmulatedPlace::current()) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, bits, &baton::emulated::CompleteMatch, place));
}

inline unsigned __reduce_add_sync(unsigned mask,
                                  unsigned value,
                                  EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceAdd, place));
}
inline int __reduce_add_sync(unsigned mask,
                             int value,
                             EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(value), place));
}
inline unsigned __reduce_min_sync(unsigned mask,
                                  unsigned value,
                                  EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceMinUnsigned, place));
}
inline unsigned __reduce_max_sync(unsigned mask,
                                  unsigned value,
                                  EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceMaxUnsigned, place));
}
inline int __reduce_min_sync(unsigned mask,
                             int value,
                             EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<int>(baton::emulated::Meet(mask, static_cast<unsigned>(value),
                                                &baton::emulated::CompleteReduceMinSigned, place));
}
inline int __reduce_max_sync(unsigned mask,
                             int value,
                             EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<int>(baton::emulated::Meet(mask, static_cast<unsigned>(value),
                                                &baton::emulated::CompleteReduceMaxSigned, place));
}
inline unsigned __reduce_and_sync(unsigned mask,
                                  unsigned value,
                                  EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceAnd, place));
}
inline unsigned __reduce_or_sync(unsigned mask,
                                 unsigned value,
                                 EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceOr, place));
}
inline unsigned __reduce_xor_sync(unsigned mask,
                                  unsigned value,
                                  EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceXor, place));
}

// Atomic and without order, as CUDA's; each returns the old value.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).exchange(value, std::memory_order_relaxed);
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*address).compare_exchange_strong(expected, value, std::memory_order_relaxed);
  return expected;
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  std::atomic_ref<T> shared(*address);
  T old = shared.load(std::memory_order_relaxed);
  while (old < value && !shared.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
  return old;
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  std::atomic_ref<T> shared(*address);
  T old = shared.load(std::memory_order_relaxed);
  while (value < old && !shared.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
  return old;
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_or(value, std::memory_order_relaxed);
}

// Blocks run one after the other on one OS thread: nothing is left for a fence to do.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

template <class T>
T __ldg(const T* address) {
  return *address;
}

inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float __saturatef(float x) {
  return x < 0 ? 0 : x > 1 ? 1 : x;
}
inline float __fmaf_rn(float x, float y, float z) {
  return std::fma(x, y, z);
}
inline float __fadd_rn(float x, float y) {
  return x + y;
}
inline float __fmul_rn(float x, float y) {
  return x * y;
}

inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}

inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(x) * y) >> 32);
}

inline int min(int x, int y) {
  return x < y ? x : y;
}
inline int max(int x, int y) {
  return x > y ? x : y;
}
inline unsigned min(unsigned x, unsigned y) {
  return x < y ? x : y;
}
inline unsigned max(unsigned x, unsigned y) {
  return x > y ? x : y;
}
inline std::int64_t min(std::int64_t x, std::int64_t y) {
  return x < y ? x : y;
}
inline std::int64_t max(std::int64_t x, std::int64_t y) {
  return x > y ? x : y;
}

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
