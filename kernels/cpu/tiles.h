#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/tile_attention.h"
#include "kernels/cpu/tile_kv.h"
#include "kernels/cpu/tile_matmul.h"
#include "kernels/cpu/tile_rows.h"

// All kernels for one vector type. Unnamed namespace: see vector_plain.h.
namespace baton {
namespace {

template <typename V>
constexpr KernelTable MakeKernelTable(const char* arithmetic) {
  return {.arithmetic = arithmetic,
          .reads_compact_weights = false,
          .mat_mul_panels = MatMulPanelRuns<V>,
          .gated_mat_mul_panels = GatedMatMulPanelRuns<V>,
          .attention_tile = AttendTile<V>,
          .attention_rows = kAttentionTileRows,
          .attention_scratch_floats = AttentionScratchFloats,
          .rms_norm_row = RmsNormRow<V>,
          .silu_multiply_row = SiluMultiplyRow<V>,
          .write_kv_run = WriteKvRun<V>,
          .softmax_weights = SoftmaxWeights<V>};
}

}  // namespace
}  // namespace baton
