#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file.h"
#include "model/model_config.h"
#include "model/tokenizer_data.h"
#include "model/weight_table.h"

namespace baton {

// How the rows of a head in the query and key weights are paired for rotation.
enum class RotaryOrder {
  kAdjacentPairs,  // rows (2i, 2i + 1): llama models in GGUF
  kHalfSplit,      // rows (i, i + D/2): Hugging Face
};

// What a loader gets out of a model's files.
struct ModelParts {
  ModelConfig config;
  WeightTable weights{ModelConfig()};
  RotaryOrder rotary_order = RotaryOrder::kHalfSplit;
  TokenizerData tokenizer;
  FilePlace tokenizer_place;          // for errors that Tokenizer::Create finds
  std::string chat_template;          // empty: none
  std::vector<StoredTensor> tensors;  // all that the files hold, used or not
  std::vector<MappedFile>
      files;  // everything the model's numbers come from, by name; own the tensors' bytes
};

// `path` is one GGUF file.
absl::StatusOr<ModelParts> LoadGguf(const std::string& path);

// `directory` holds config.json, tokenizer.json, and model.safetensors or the shards that
// model.safetensors.index.json lists; tokenizer_config.json, generation_config.json and
// chat_template.jinja are read when they are there.
absl::StatusOr<ModelParts> LoadHuggingFace(const std::string& directory);

}  // namespace baton
