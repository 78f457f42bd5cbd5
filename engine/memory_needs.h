#pragma once

#include <cstddef>
#include <string>

#include "model/model_config.h"

namespace baton {

// What an engine takes of its backend's memory, by part. Bytes.
struct MemoryNeeds {
  std::size_t weights = 0;      // angles of rotations among them
  std::size_t activations = 0;  // of the largest step
  std::size_t kv_pool = 0;
  std::size_t workspace = 0;  // that the backend holds for itself
};

// Weights and activations of a model, of a step of at most `rows` rows and `logit_rows` rows with
// logits. What a backend adds to a weight to its liking is not in it.
MemoryNeeds NeedsOf(const ModelConfig& config, int rows, int logit_rows);

// "weights 256.6 MiB, activations 21.0 MiB, KV pool 2.0 GiB, workspace 0 bytes".
std::string Describe(const MemoryNeeds& needs);

// "1.5 GiB", "20.0 MiB", "900 bytes".
std::string BytesText(std::size_t bytes);

}  // namespace baton
