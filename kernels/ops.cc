#include "kernels/ops.h"

namespace baton {

KvPoolView MakeKvPoolView(std::byte* data, int blocks, const KvLayout& layout) {
  return {.data = data,
          .blocks = blocks,
          .layers = layout.layers,
          .kv_heads = layout.kv_heads,
          .head_dim = layout.head_dim,
          .layer_bytes = layout.layer_bytes};
}

}  // namespace baton
