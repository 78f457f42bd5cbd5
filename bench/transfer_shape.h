#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "common/kv_layout.h"

namespace baton {

// What becomes ready, and is moved, at once: all layers of a block, or one layer of a block. With
// kLayer a layer of every block goes before the next layer of any.
enum class Piece { kBlock, kLayer };

inline std::string ToString(Piece piece) {
  return piece == Piece::kBlock ? "block" : "layer";
}
inline std::optional<Piece> PieceFromString(std::string_view text) {
  if (text == "block") {
    return Piece::kBlock;
  }
  return text == "layer" ? std::optional(Piece::kLayer) : std::nullopt;
}

// What one transfer moves, the KV blocks of a prompt of SmolLM2-135M in 16 bit, and where.
struct TransferShape {
  int blocks = 256;
  int layers = 30;
  std::size_t layer_bytes = 12288;  // 16 tokens of 3 heads of 64 values, K and V
  // The sender stays on the first core that this program may use, the receiver on the last, as if
  // they were two machines; else wherever the system puts them.
  bool cores_apart = true;

  // Twice what is moved, so that source and destination blocks lie scattered.
  int pool_blocks() const { return 2 * blocks; }
  std::size_t block_bytes() const { return layer_bytes * static_cast<std::size_t>(layers); }
  std::size_t bytes() const { return block_bytes() * static_cast<std::size_t>(blocks); }
  std::size_t piece_bytes(Piece piece) const {
    return piece == Piece::kBlock ? block_bytes() : layer_bytes;
  }
  KvLayout layout() const {
    return {.layers = layers,
            .kv_heads = 3,
            .head_dim = 64,
            .element_type = "bf16",
            .layout_id = "transfer-bench",
            .layer_bytes = layer_bytes};
  }
};

}  // namespace baton
