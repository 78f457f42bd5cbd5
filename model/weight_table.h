#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/strong_id.h"
#include "model/stored_tensor.h"
#include "model/weight.h"

namespace baton {

// The two ways in which files name the same weights.
enum class NamingScheme { kGguf, kHuggingFace };

struct WeightName {
  WeightKind kind = WeightKind::kTokenEmbedding;
  LayerIndex layer;  // 0 for a weight outside layers
};

// "blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight".
std::string TensorName(NamingScheme scheme, const WeightName& weight);

// The inverse; nullopt for a name that stands for no weight of a llama model.
std::optional<WeightName> ParseTensorName(NamingScheme scheme, const std::string& name);

// The tensors of a model by the weight they hold. Filled by a loader, immutable afterwards.
class WeightTable {
 public:
  explicit WeightTable(const ModelConfig& config);

  // INVALID_ARGUMENT naming the tensor when its layer or its shape does not fit the model, or the
  // weight is there already.
  absl::Status Add(const WeightName& name, StoredTensor tensor);

  // The first weight that is missing; a tied model needs no head.
  std::optional<WeightName> FindMissing() const;

  // REQUIRES: nothing is missing, and layer < L for a weight that is in every layer. kHead of a
  // tied model is the embedding.
  const StoredTensor& Get(const WeightName& name) const;

 private:
  std::size_t Slot(const WeightName& name) const;

  ModelConfig config_;
  std::vector<std::optional<StoredTensor>> slots_;  // three outside layers, then nine per layer
};

}  // namespace baton
