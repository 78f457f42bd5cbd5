#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

// CUDA's atomics, bit functions and arithmetic under their own names, for kernels.

// glibc has functions of these names.
#define __expf(x) ::baton::emulated::FastExp(x)
#define __exp10f(x) ::baton::emulated::FastExp10(x)
#define __logf(x) ::baton::emulated::FastLog(x)
#define __log2f(x) ::baton::emulated::FastLog2(x)
#define __sinf(x) ::baton::emulated::FastSin(x)
#define __cosf(x) ::baton::emulated::FastCos(x)
#define __powf(x, y) ::baton::emulated::FastPow(x, y)

namespace baton::emulated {

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

}  // namespace baton::emulated

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
