#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "model/element_type.h"

namespace baton {

// A random llama model of a few hundred thousand weights: real files for tests that need no real
// model. The same options give the same bytes on every machine, and the same weights in both
// formats.
//
// Token ids: 0 `<|endoftext|>`, 1 `<|im_start|>` (bos), 2 `<|im_end|>` (eos), all control; 3 to 258
// the single bytes; then one token for each merge. Chat is ChatML with a default system message,
// digits are split off alone.
struct TinyModelOptions {
  std::uint64_t seed = 1;
  std::string name = "tiny";
  int layers = 2;          // L
  int hidden = 192;        // E, a multiple of the element type's block
  int feed_forward = 256;  // F, likewise
  int heads = 3;           // H
  int kv_heads = 1;        // G
  int head_dim = 64;       // D; H * D likewise
  int vocabulary = 512;    // V, 259 to 1024
  int context_tokens = 4096;
  double rope_base = 10000;
  bool tied_head = true;
  ElementType type = ElementType::kF32;  // of the matrices; norms are always F32
  int shards = 1;                        // weight files of the Hugging Face directory
};

// Writes one GGUF v3 file. INVALID_ARGUMENT for options that make no model.
absl::Status WriteTinyGguf(const TinyModelOptions& options, const std::string& path);

// Makes `directory` if it is absent and writes config.json, tokenizer.json, tokenizer_config.json
// and the weights as safetensors: in BF16 when that is `type`, else in F32, a quantized type
// decoded.
absl::Status WriteTinyHuggingFace(const TinyModelOptions& options, const std::string& directory);

}  // namespace baton
