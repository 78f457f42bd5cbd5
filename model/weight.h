#pragma once

#include <array>
#include <string_view>

#include "model/model_config.h"

namespace baton {

// Every weight of a llama model. The first and the last two exist once, the others once per layer.
enum class WeightKind {
  kTokenEmbedding,
  kAttentionNorm,
  kQuery,
  kKey,
  kValue,
  kAttentionOutput,
  kFeedForwardNorm,
  kGate,
  kUp,
  kDown,
  kOutputNorm,
  kHead,
};

inline constexpr std::array kLayerWeights = {
    WeightKind::kAttentionNorm,
    WeightKind::kQuery,
    WeightKind::kKey,
    WeightKind::kValue,
    WeightKind::kAttentionOutput,
    WeightKind::kFeedForwardNorm,
    WeightKind::kGate,
    WeightKind::kUp,
    WeightKind::kDown,
};

// [rows = outputs, columns = inputs] of a projection; an embedding is [V, E]; a norm is [1, E].
struct WeightShape {
  int rows = 0;
  int columns = 0;

  friend bool operator==(const WeightShape&, const WeightShape&) = default;
};

WeightShape ShapeOf(const ModelConfig& config, WeightKind kind);

bool IsPerLayer(WeightKind kind);
bool IsNorm(WeightKind kind);

}  // namespace baton
