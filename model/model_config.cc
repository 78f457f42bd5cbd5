#include "model/model_config.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// Far above every known model and far below what would make an index or a size overflow.
constexpr int kMostLayers = 4096;
constexpr int kMostHeads = 65536;
constexpr int kMostHeadDim = 4096;
constexpr int kMostWidth = 1 << 20;
constexpr int kMostVocabulary = 1 << 24;
constexpr int kMostContextTokens = 1 << 28;

}  // namespace

std::optional<ConfigProblem> FindConfigProblem(const ModelConfig& config) {
  struct Limit {
    ConfigField field;
    const char* name;
    int value;
    int most;
  };
  const Limit limits[] = {
      {ConfigField::kLayers, "number of layers", config.layers, kMostLayers},
      {ConfigField::kHidden, "embedding width", config.hidden, kMostWidth},
      {ConfigField::kFeedForward, "feed-forward width", config.feed_forward, kMostWidth},
      {ConfigField::kHeads, "number of heads", config.heads, kMostHeads},
      {ConfigField::kKvHeads, "number of key/value heads", config.kv_heads, kMostHeads},
      {ConfigField::kHeadDim, "head dimension", config.head_dim, kMostHeadDim},
      {ConfigField::kVocabulary, "vocabulary", config.vocabulary, kMostVocabulary},
      {ConfigField::kContextTokens, "context length", config.context_tokens, kMostContextTokens},
  };
  for (const Limit& limit : limits) {
    if (limit.value < 1 || limit.value > limit.most) {
      return ConfigProblem{
          limit.field, absl::StrCat(limit.name, " is ", limit.value, ", not in 1 to ", limit.most)};
    }
  }
  if (config.heads * config.head_dim > kMostWidth) {
    return ConfigProblem{
        ConfigField::kHeadDim,
        absl::StrCat(config.heads, " heads of ", config.head_dim, " are wider than ", kMostWidth)};
  }
  if (config.heads % config.kv_heads != 0) {
    return ConfigProblem{
        ConfigField::kKvHeads,
        absl::StrCat(config.kv_heads, " key/value heads do not divide ", config.heads, " heads")};
  }
  if (config.head_dim % 2 != 0) {
    return ConfigProblem{
        ConfigField::kHeadDim,
        absl::StrCat("head dimension ", config.head_dim, " is odd, rotary pairs need an even one")};
  }
  if (!(config.rms_epsilon > 0) || config.rms_epsilon > 1) {
    return ConfigProblem{
        ConfigField::kRmsEpsilon,
        absl::StrCat("RMS norm epsilon is ", config.rms_epsilon, ", not in (0, 1]")};
  }
  if (!(config.rope_base > 1) || !std::isfinite(config.rope_base)) {
    return ConfigProblem{ConfigField::kRopeBase, absl::StrCat("rotary base is ", config.rope_base,
                                                              ", not a finite number above 1")};
  }
  return std::nullopt;
}

}  // namespace baton
