#pragma once

#include "kernels/cuda/gemm.h"

namespace baton::emulated {

// A stand-in for cuBLASLt on the host, which no emulator can run: plain loops with sums in float.
// Says nothing about the real library; what stands around it is what it lets run. A row of a
// product is the same in every batch.
//
// Not thread-safe, like every Gemm.
class HostGemm final : public cuda::Gemm {
 public:
  std::string_view name() const override { return "host-stand-in-for-cublaslt"; }
  std::size_t workspace_bytes() const override { return 0; }
  absl::Status Prepare(const cuda::GemmParams& params) override;
  absl::Status Run(const cuda::GemmParams& params, cuda::StreamHandle stream) override;
};

}  // namespace baton::emulated
