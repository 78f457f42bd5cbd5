#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch_types.h"

// Operations that take rows one by one. All pointers are device memory; meaning and formulas:
// kernels/ops.h. A row index or block of -1 is padding of a batch bucket: nothing is written for
// it.
namespace baton::cuda {

struct EmbedParams {
  const int* tokens = nullptr;      // [rows]; -1: the row becomes zeros
  const void* embedding = nullptr;  // [V, E] of `element`
  Element element = Element::kBFloat16;
  float* hidden = nullptr;  // [rows, E]
  std::int64_t hidden_stride = 0;
  int rows = 0;
  int width = 0;  // E
};

// The residual add of the layer before is part of the matrix product (beta = 1), so the norm reads
// the sum once.
struct RmsNormParams {
  const float* input = nullptr;  // [*, E]
  std::int64_t input_stride = 0;
  const int* take_rows = nullptr;  // [rows] rows of input, -1: zeros; null: all in order
  const float* weight = nullptr;   // [E]
  float epsilon = 0;
  Element element = Element::kBFloat16;
  void* output = nullptr;  // [rows, E] of `element`
  std::int64_t output_stride = 0;
  int rows = 0;
  int width = 0;
};

// output = silu(gate) * up; a row of gate_up is F gates, then F ups.
struct SiluMultiplyParams {
  const float* gate_up = nullptr;  // [rows, 2F]
  std::int64_t gate_up_stride = 0;
  Element element = Element::kBFloat16;
  void* output = nullptr;  // [rows, F] of `element`
  std::int64_t output_stride = 0;
  int rows = 0;
  int width = 0;  // F
};

struct RotateAndWriteKvParams {
  const float* key = nullptr;  // [rows, G, D]
  std::int64_t key_stride = 0;
  const float* value = nullptr;
  std::int64_t value_stride = 0;
  const int* rotation = nullptr;  // [rows]
  const int* block = nullptr;     // [rows]; -1: nothing is written
  const int* offset = nullptr;    // [rows]
  const float* rope = nullptr;    // [positions, D/2, 2]
  KvPool pool;
  int head_dim = 0;
  Element element = Element::kBFloat16;
  int rows = 0;
};

// Copies pieces of equal size between places all over a pool and one contiguous buffer; sizes and
// addresses are multiples of 16.
struct BlockCopyParams {
  std::byte* const* pieces = nullptr;  // [count] device addresses in the pool
  std::byte* staging = nullptr;        // [count, piece_bytes]; device memory or pinned host memory
  std::int64_t piece_bytes = 0;
  int count = 0;
};

}  // namespace baton::cuda
