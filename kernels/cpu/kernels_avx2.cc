#include "kernels/cpu/tiles.h"
#include "kernels/cpu/vector_avx2.h"

namespace baton {

const KernelTable& Avx2Kernels() {
  static constexpr KernelTable kTable = MakeKernelTable<VectorAvx2>("cpu-avx2");
  return kTable;
}

}  // namespace baton
