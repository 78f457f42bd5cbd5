#pragma once

#include <cstddef>
#include <cstdint>

#include "common/strong_id.h"

namespace baton {

inline constexpr int kPanelColumns = 32;  // output columns of one panel of a packed weight

// A chunk of a compact weight; see compact_weight.h.
inline constexpr int kCompactChunkWords = 16;  // of k
inline constexpr int kCompactPairBytes = 192;  // of two of these
inline constexpr int kCompactChunkBytes = kCompactChunkWords / 2 * kCompactPairBytes;

// A value that unpacking does not give.
struct CompactException {
  std::uint32_t chunk;      // of the weight
  std::uint16_t value = 0;  // of the chunk, [16, 64]
  std::uint16_t bits = 0;   // bf16
};

// Neighbouring panels of a compact weight.
struct CompactPanels {
  const std::byte* data = nullptr;               // null: there is no compact weight
  std::uint32_t first_chunk = 0;                 // of the weight, that `data` begins with
  const std::uint8_t* exponents = nullptr;       // [16]
  const CompactException* exceptions = nullptr;  // from `first_chunk` on; the last is of no chunk
};

// Rows of activations times neighbouring panels of 32 output columns.
struct MatMulPanels {
  const std::uint32_t* panels =
      nullptr;  // [ceil(columns / 32), K/2, 32] words: k in the low half, k + 1 in the high half
  CompactPanels compact;                 // the same, if there
  const std::uint16_t* input = nullptr;  // [rows, K] bf16
  std::ptrdiff_t input_stride = 0;       // in elements
  int rows = 0;                          // at least 1
  int word_columns = 0;                  // K/2
  float* output = nullptr;               // [rows, columns]
  std::ptrdiff_t output_stride = 0;      // in elements
  int columns = 0;                       // of the output
  bool accumulate = false;
};

// Rows of activations times panels of gates and as many of what the gates multiply: output =
// silu(input * gate) * (input * up).
struct GatedMatMulPanels {
  const std::uint32_t* gate_panels = nullptr;  // [panels, K/2, 32], as in MatMulPanels
  const std::uint32_t* up_panels = nullptr;    // likewise
  CompactPanels compact_gate;                  // the same as the two above, if there
  CompactPanels compact_up;
  int panels = 0;
  const std::uint16_t* input = nullptr;  // [rows, K] bf16
  std::ptrdiff_t input_stride = 0;       // in elements
  int rows = 0;                          // at least 1
  int word_columns = 0;                  // K/2
  std::uint16_t* output = nullptr;       // [rows, 32 * panels] bf16
  std::ptrdiff_t output_stride = 0;      // in elements
};

// Keys and values that a thread may attend to soon; nothing depends on them.
struct AttentionAhead {
  const BlockId* blocks = nullptr;
  int tokens = 0;
  int heads = 0;
  const std::byte* pool = nullptr;  // layer and first head of block 0
};

// Queries that see the same list of segments, with neighbouring key/value heads. See
// tile_attention.h for the order of work.
struct AttentionTile {
  const float* query = nullptr;      // first row, first query head: [queries, heads, group, D]
  std::ptrdiff_t query_stride = 0;   // between queries, in elements
  std::uint16_t* output = nullptr;   // bf16, like query
  std::ptrdiff_t output_stride = 0;  // in elements
  int queries = 0;
  int heads = 0;     // key/value heads
  int group = 0;     // query heads of each
  int head_dim = 0;  // D

  int entries = 0;                         // segments of each query
  const BlockId* const* blocks = nullptr;  // [entries]
  const int* delta = nullptr;              // [queries, entries]
  const int* visible_tokens = nullptr;     // [queries, entries]
  const std::byte* pool = nullptr;         // layer and first head of block 0
  std::size_t block_stride_bytes = 0;
  AttentionAhead ahead;            // what comes after this tile
  const float* cosines = nullptr;  // [positions, D/2]
  const float* sines = nullptr;    // [positions, D/2]
  float scale = 0;
  float* scratch = nullptr;  // attention_scratch_floats(), aligned to 64 bytes
};

// One layer of one block holds, for each key/value head, K as [D/2][16 tokens][2] and V as [8 token
// pairs][D][2]. The pair i of K is the dimensions i and i + D/2, which the rotary embedding turns
// together.
inline constexpr std::size_t KeyBytes(int head_dim) {
  return std::size_t{32} * static_cast<std::size_t>(head_dim);
}
inline constexpr std::size_t HeadBytes(int head_dim) {
  return 2 * KeyBytes(head_dim);
}

// Keys and values of one key/value head for tokens that go into neighbouring slots of one block.
struct KvRun {
  const float* key = nullptr;       // first token, not rotated: [tokens, D]
  const float* value = nullptr;     // [tokens, D]
  std::ptrdiff_t key_stride = 0;    // between tokens, in elements
  std::ptrdiff_t value_stride = 0;  // likewise
  const int* rotation = nullptr;    // [tokens]
  const float* cosines = nullptr;   // [positions, D/2]
  const float* sines = nullptr;     // [positions, D/2]
  int tokens = 0;
  int head_dim = 0;                 // D
  int slot = 0;                     // of the first token
  std::uint32_t* keys = nullptr;    // the block's: [D/2, 16] words
  std::uint32_t* values = nullptr;  // [8, D] words
};

// The kernels of one instruction set. Everything a thread passes in is its own; no function keeps
// state.
struct KernelTable {
  const char* arithmetic;
  bool reads_compact_weights;  // where few rows are multiplied

  void (*mat_mul_panels)(const MatMulPanels& panels);
  void (*gated_mat_mul_panels)(const GatedMatMulPanels& panels);
  void (*attention_tile)(const AttentionTile& tile);
  // Rows of a tile, queries times group, that suit it; more only where one query has more.
  int attention_rows;
  // For `rows` rows of each of `heads` key/value heads.
  std::size_t (*attention_scratch_floats)(int rows, int heads, int head_dim);

  // output = input / rms(input) * weight
  void (*rms_norm_row)(
      const float* input, const float* weight, float epsilon, int width, std::uint16_t* output);
  // output = silu(gate) * up
  void (*silu_multiply_row)(const float* gate, const float* up, int width, std::uint16_t* output);
  void (*write_kv_run)(const KvRun& run);
  // weights[i] = exp((logits[i] - maximum) * scale)
  void (*softmax_weights)(
      const float* logits, int count, float maximum, float scale, float* weights);
};

const KernelTable& PlainKernels();
const KernelTable& Avx2Kernels();        // only where the build targets x86-64
const KernelTable& Avx512Bf16Kernels();  // likewise
const KernelTable& AmxKernels();         // likewise

}  // namespace baton
