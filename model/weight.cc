#include "model/weight.h"

#include "common/check.h"

namespace baton {

WeightShape ShapeOf(const ModelConfig& config, WeightKind kind) {
  const int query_width = config.heads * config.head_dim;
  const int kv_width = config.kv_heads * config.head_dim;
  switch (kind) {
    case WeightKind::kTokenEmbedding:
    case WeightKind::kHead:
      return {config.vocabulary, config.hidden};
    case WeightKind::kAttentionNorm:
    case WeightKind::kFeedForwardNorm:
    case WeightKind::kOutputNorm:
      return {1, config.hidden};
    case WeightKind::kQuery:
      return {query_width, config.hidden};
    case WeightKind::kKey:
    case WeightKind::kValue:
      return {kv_width, config.hidden};
    case WeightKind::kAttentionOutput:
      return {config.hidden, query_width};
    case WeightKind::kGate:
    case WeightKind::kUp:
      return {config.feed_forward, config.hidden};
    case WeightKind::kDown:
      return {config.hidden, config.feed_forward};
  }
  CheckFailed(__FILE__, __LINE__, "a WeightKind that is not in the enumeration");
}

bool IsPerLayer(WeightKind kind) {
  return kind != WeightKind::kTokenEmbedding && kind != WeightKind::kOutputNorm &&
         kind != WeightKind::kHead;
}

bool IsNorm(WeightKind kind) {
  return kind == WeightKind::kAttentionNorm || kind == WeightKind::kFeedForwardNorm ||
         kind == WeightKind::kOutputNorm;
}

}  // namespace baton
