#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/launchers.cuh"

namespace baton {
namespace BATON_CUDA_NAMESPACE {
namespace {

constexpr cuda::KernelTable kTable = {
    .embed = nullptr,
    .rms_norm = nullptr,
    .silu_multiply = nullptr,
    .rotate_and_write_kv = nullptr,
    .decode_attention = &LaunchDecodeAttention,
    .prefill_attention = &LaunchPrefillAttention,
    .select_tokens = nullptr,
    .gather_blocks = nullptr,
    .scatter_blocks = nullptr,
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
