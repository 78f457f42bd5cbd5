#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch_types.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/cuda/sampling.h"

namespace baton::cuda {

// Every kernel behind a function that launches it on a stream and returns at once. The same sources
// are compiled twice: by nvcc for GPUs, and by the host's compiler under tests/emulation. A program
// may hold both tables.
//
// Launch functions are thread-safe. Params are copied before they return; what their pointers name
// must live until the stream has passed the launch.
struct KernelTable {
  LaunchCode (*embed)(const EmbedParams&, StreamHandle);
  LaunchCode (*rms_norm)(const RmsNormParams&, StreamHandle);
  LaunchCode (*silu_multiply)(const SiluMultiplyParams&, StreamHandle);
  LaunchCode (*rotate_and_write_kv)(const RotateAndWriteKvParams&, StreamHandle);
  LaunchCode (*decode_attention)(const DecodeAttentionParams&, StreamHandle);
  LaunchCode (*prefill_attention)(const PrefillAttentionParams&, StreamHandle);
  LaunchCode (*select_tokens)(const SamplingParams&, StreamHandle);
  LaunchCode (*gather_blocks)(const BlockCopyParams&, StreamHandle);
  LaunchCode (*scatter_blocks)(const BlockCopyParams&, StreamHandle);
};

// Compiled by nvcc; only where BATON_CUDA is on.
const KernelTable& GpuKernels();

}  // namespace baton::cuda

namespace baton::emulated {

// The same kernels on fibers of the host: tests/emulation.
const cuda::KernelTable& Kernels();

}  // namespace baton::emulated
