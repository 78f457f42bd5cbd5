#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/launchers.cuh"

namespace baton {
namespace BATON_CUDA_NAMESPACE {
namespace {

constexpr cuda::KernelTable kTable = {
    .embed = LaunchEmbed,
    .rms_norm = LaunchRmsNorm,
    .silu_multiply = LaunchSiluMultiply,
    .rotate_and_write_kv = LaunchRotateAndWriteKv,
    .decode_attention = LaunchDecodeAttention,
    .prefill_attention = LaunchPrefillAttention,
    .select_tokens = LaunchSelectTokens,
    .gather_blocks = LaunchGatherBlocks,
    .scatter_blocks = LaunchScatterBlocks,
};

}  // namespace
}  // namespace BATON_CUDA_NAMESPACE

#ifdef BATON_EMULATE_CUDA
const cuda::KernelTable& emulated::Kernels() {
  return BATON_CUDA_NAMESPACE::kTable;
}
#else
const cuda::KernelTable& cuda::GpuKernels() {
  return BATON_CUDA_NAMESPACE::kTable;
}
#endif

}  // namespace baton
