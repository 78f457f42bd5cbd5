#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.cuh"

// The two 16-bit types that weights, keys, values and outputs are kept in. Storage only: arithmetic
// is in float. Conversions round to nearest, ties to even; a NaN becomes the NaN that a GPU makes.
namespace baton::BATON_CUDA_NAMESPACE {

struct BFloat16 {
  std::uint16_t bits;
};

struct Half {
  std::uint16_t bits;
};

#ifdef BATON_EMULATE_CUDA

inline float ToFloat(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

inline float ToFloat(Half value) {
  const unsigned sign = (value.bits & 0x8000u) << 16;
  const unsigned magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, NaN
    return __uint_as_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude < 0x400u) {  // zero, or too small for an exponent: a multiple of 2^-24
    const float small = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -small : small;
  }
  return __uint_as_float(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

template <class T>
T FromFloat(float value);

template <>
inline BFloat16 FromFloat<BFloat16>(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {0x7fff};
  }
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <>
inline Half FromFloat<Half>(float value) {
  const unsigned bits = __float_as_uint(value);
  const unsigned sign = (bits >> 16) & 0x8000u;
  const unsigned magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {0x7fff};
  }
  if (magnitude < 0x38800000u) {  // below 2^-14, the least normal number: a multiple of 2^-24
    const float steps = std::nearbyint(std::fabs(value) * 0x1p24f);
    return {static_cast<std::uint16_t>(sign | static_cast<unsigned>(steps))};
  }
  const unsigned rebased = magnitude - ((127u - 15u) << 23);
  const unsigned rounded = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
  return {static_cast<std::uint16_t>(sign | (rounded < 0x7c00u ? rounded : 0x7c00u))};
}

#else

__device__ __forceinline__ float ToFloat(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

__device__ __forceinline__ float ToFloat(Half value) {
  return __half2float(__ushort_as_half(value.bits));
}

template <class T>
__device__ __forceinline__ T FromFloat(float value);

template <>
__device__ __forceinline__ BFloat16 FromFloat<BFloat16>(float value) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
}

template <>
__device__ __forceinline__ Half FromFloat<Half>(float value) {
  return {__half_as_ushort(__float2half_rn(value))};
}

#endif

// Two elements in one register, as mma and ldmatrix keep them: the first in the lower half.
template <class T>
__device__ __forceinline__ unsigned PackPair(float first, float second) {
  return static_cast<unsigned>(FromFloat<T>(first).bits) |
         (static_cast<unsigned>(FromFloat<T>(second).bits) << 16);
}

#ifndef BATON_EMULATE_CUDA

// One instruction converts both; nvcc does not see that the generic body is the same.
template <>
__device__ __forceinline__ unsigned PackPair<BFloat16>(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const unsigned&>(pair);
}

template <>
__device__ __forceinline__ unsigned PackPair<Half>(float first, float second) {
  const __half2 pair = __floats2half2_rn(first, second);
  return reinterpret_cast<const unsigned&>(pair);
}

#endif

template <class T>
__device__ __forceinline__ float2 UnpackPair(unsigned pair) {
  return make_float2(ToFloat(T{static_cast<std::uint16_t>(pair & 0xffffu)}),
                     ToFloat(T{static_cast<std::uint16_t>(pair >> 16)}));
}

// Calls function(T()) with the type that `element` names, on the host.
template <class Function>
auto WithElement(cuda::Element element, Function function) {
  switch (element) {
    case cuda::Element::kBFloat16:
      return function(BFloat16());
    case cuda::Element::kHalf:
      return function(Half());
  }
  return decltype(function(Half()))();
}

}  // namespace baton::BATON_CUDA_NAMESPACE
