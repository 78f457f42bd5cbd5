#pragma once

#include "tests/emulation/runtime.h"

// CUDA's small structures, with CUDA's alignment. In a namespace of their own, so that a program
// may hold code that was compiled by nvcc, too; the names that kernels use are made here.
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
