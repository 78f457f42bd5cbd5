#include "kernels/cpu/tiles.h"
#include "kernels/cpu/vector_avx512bf16.h"

namespace baton {

const KernelTable& Avx512Bf16Kernels() {
  static constexpr KernelTable kTable = MakeKernelTable<VectorAvx512Bf16>("cpu-avx512bf16");
  return kTable;
}

}  // namespace baton
