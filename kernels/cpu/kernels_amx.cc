#include "kernels/cpu/amx_attention.h"
#include "kernels/cpu/amx_matmul.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/vector_avx512bf16.h"

namespace baton {
namespace {

constexpr KernelTable MakeAmxTable() {
  KernelTable table = MakeKernelTable<VectorAvx512Bf16>("cpu-amx");
  table.reads_compact_weights = true;
  table.mat_mul_panels = AmxMatMulPanels;
  table.gated_mat_mul_panels = AmxGatedMatMulPanels;
  table.attention_tile = AmxAttendTile;
  table.attention_rows = kAmxAttentionRows;
  table.attention_scratch_floats = AmxAttentionScratchFloats;
  return table;
}

}  // namespace

const KernelTable& AmxKernels() {
  static constexpr KernelTable kTable = MakeAmxTable();
  return kTable;
}

}  // namespace baton
