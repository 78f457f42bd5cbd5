#pragma once

#include <optional>
#include <string>

namespace baton {

// The numbers that fix a llama model's arithmetic, as its own file gives them. Letters as in
// kernels/README.md.
struct ModelConfig {
  std::string name;      // as the file says, else the name of the file or directory
  int layers = 0;        // L
  int hidden = 0;        // E, embedding width
  int feed_forward = 0;  // F
  int heads = 0;         // H, query heads
  int kv_heads = 0;      // G, divides H
  int head_dim = 0;      // D, even; H * D may differ from E
  int vocabulary = 0;    // V, number of token ids
  int context_tokens =
      0;  // longest sequence the model was made for, prompt and completion together
  double rms_epsilon = 0;  // a float32 value, whatever the file's precision
  double rope_base = 0;    // a float32 value, whatever the file's precision
  bool tied_head = false;  // the output projection is the embedding

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// The numbers that FindConfigProblem looks at, so that a loader can name its own key for each.
enum class ConfigField {
  kLayers,
  kHidden,
  kFeedForward,
  kHeads,
  kKvHeads,
  kHeadDim,
  kVocabulary,
  kContextTokens,
  kRmsEpsilon,
  kRopeBase,
};

struct ConfigProblem {
  ConfigField field = ConfigField::kLayers;
  std::string text;  // "number of heads is 0, not in 1 to 65536"
};

// The first number that no llama model can have: not positive, too large to index, or in
// contradiction to another.
std::optional<ConfigProblem> FindConfigProblem(const ModelConfig& config);

}  // namespace baton
