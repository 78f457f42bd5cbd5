#pragma once

#include <algorithm>

#include "model/model_config.h"

namespace baton {

// What a figure needs at the least, whoever computes it with weights as they are: bf16 weights,
// bf16 keys and values, every weight read once a step, no arithmetic but products of matrices and
// attention. A backend that keeps weights in fewer bytes without loss may be quicker.
struct Work {
  double flops = 0;
  double bytes = 0;
};

// What a number of threads can do; see machine_limits.h.
struct Limits {
  double flops_per_second = 0;
  double bytes_per_second = 0;
};

// Streams that each take `steps` tokens after a prompt of `depth` tokens, one a step.
struct DecodeShape {
  int streams = 1;
  int depth = 0;
  int steps = 1;
};

inline constexpr double kBf16Bytes = 2;

// Weights of the matrices of all layers; embedding and head are not among them.
constexpr double LinearWeights(const ModelConfig& config) {
  const double query = double{1} * config.heads * config.head_dim;
  const double key_value = 2.0 * config.kv_heads * config.head_dim;
  const double attention = config.hidden * (query + key_value) + query * config.hidden;
  const double feed_forward = 3.0 * config.hidden * config.feed_forward;
  return config.layers * (attention + feed_forward);
}

constexpr double HeadWeights(const ModelConfig& config) {
  return double{1} * config.hidden * config.vocabulary;
}

// A key and a value of every layer.
constexpr double KvBytesPerToken(const ModelConfig& config) {
  return kBf16Bytes * 2 * config.layers * config.kv_heads * config.head_dim;
}

// A query's product with one key and one value, in all layers and heads.
constexpr double AttentionFlopsPerKey(const ModelConfig& config) {
  return 4.0 * config.layers * config.heads * config.head_dim;
}

// A prompt from nothing to its first token: the head runs for the last position only.
constexpr Work PrefillWork(const ModelConfig& config, int tokens) {
  const double keys = tokens * (tokens + 1.0) / 2;  // position t sees t + 1
  return {.flops = 2 * (LinearWeights(config) * tokens + HeadWeights(config)) +
                   keys * AttentionFlopsPerKey(config),
          .bytes = kBf16Bytes * (LinearWeights(config) + HeadWeights(config))};
}

// The first of the steps computes position `depth`, which sees depth + 1 keys.
constexpr Work DecodeWork(const ModelConfig& config, const DecodeShape& shape) {
  const double weights = LinearWeights(config) + HeadWeights(config);
  const double keys = shape.steps * (shape.depth + (shape.steps + 1.0) / 2);  // of one stream
  return {
      .flops = shape.streams * (2 * weights * shape.steps + keys * AttentionFlopsPerKey(config)),
      .bytes = kBf16Bytes * weights * shape.steps + shape.streams * keys * KvBytesPerToken(config)};
}

// The least time in seconds: arithmetic and reading can overlap entirely.
constexpr double FloorSeconds(const Work& work, const Limits& limits) {
  return std::max(work.flops / limits.flops_per_second, work.bytes / limits.bytes_per_second);
}

// What decides FloorSeconds.
constexpr const char* LimitName(const Work& work, const Limits& limits) {
  return work.flops / limits.flops_per_second > work.bytes / limits.bytes_per_second ? "flops"
                                                                                     : "read";
}

}  // namespace baton
