#include "kernels/cpu/tiles.h"
#include "kernels/cpu/vector_plain.h"

namespace baton {

const KernelTable& PlainKernels() {
  static constexpr KernelTable kTable = MakeKernelTable<VectorPlain>("cpu-plain");
  return kTable;
}

}  // namespace baton
