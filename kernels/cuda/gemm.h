#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch_types.h"

namespace baton::cuda {

// output (+)= input * weight^T. All pointers are device memory, aligned to 16 bytes; strides are
// elements from a row to the next, multiples of 8.
struct GemmParams {
  const void* input = nullptr;  // [T, K] of `element`
  std::int64_t input_stride = 0;
  const void* weight = nullptr;  // [N, K] of `element`, rows next to each other
  Element element = Element::kBFloat16;
  float* output = nullptr;  // [T, N]
  std::int64_t output_stride = 0;
  int rows = 0;             // T
  int columns = 0;          // N
  int inner = 0;            // K
  bool accumulate = false;  // add to what output holds
};

// Matrix products of one device: 16-bit factors, sums in float.
//
// Not thread-safe: used only by the engine thread.
class Gemm {
 public:
  virtual ~Gemm() = default;

  virtual std::string_view name() const = 0;  // for logs: "cublaslt"
  // Device memory that it holds, taken at creation.
  virtual std::size_t workspace_bytes() const = 0;

  // Chooses how products of this shape are computed, once; Run does so at the first product of a
  // shape otherwise. REQUIRES: no capture is under way.
  virtual absl::Status Prepare(const GemmParams& params) = 0;
  // Puts the product on the stream.
  virtual absl::Status Run(const GemmParams& params, StreamHandle stream) = 0;
};

}  // namespace baton::cuda
