#include "kernels/cpu/token_selector.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/philox.h"

namespace baton {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

struct Best {
  int token = 0;
  float logit = kImpossible;
};

// The largest logit and, among equals, the lowest id. Runs of 16 lanes so that the compiler can use
// vectors; the place is looked up only where the maximum grew.
absl::Status FindBest(const float* logits, int count, Best& best) {
  constexpr int kLanes = 16;
  constexpr int kRun = 16 * kLanes;
  int bad = 0;
  best = {};
  for (int first = 0; first < count; first += kRun) {
    const int end = std::min(count, first + kRun);
    float lanes[kLanes];
    std::fill(lanes, lanes + kLanes, kImpossible);
    int i = first;
    for (; i + kLanes <= end; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float x = logits[i + lane];
        lanes[lane] = x > lanes[lane] ? x : lanes[lane];
        bad |= !(x <= std::numeric_limits<float>::max());  // NaN or +infinity
      }
    }
    for (; i < end; ++i) {
      lanes[0] = std::max(lanes[0], logits[i]);
      bad |= !(logits[i] <= std::numeric_limits<float>::max());
    }
    const float largest = *std::max_element(lanes, lanes + kLanes);
    if (largest > best.logit) {
      best = {static_cast<int>(std::find(logits + first, logits + end, largest) - logits), largest};
    }
  }
  if (bad != 0) {
    return absl::InternalError("select_tokens: a logit is not a number");
  }
  if (best.logit == kImpossible) {
    return absl::InternalError("select_tokens: no token is possible");
  }
  return absl::OkStatus();
}

bool HasPenalty(const TokenSelection& row) {
  return row.repetition_penalty != 1 || row.frequency_penalty != 0 || row.presence_penalty != 0;
}

// Banning others leaves the largest logit what it is.
bool IsGreedyAndAllowed(const TokenSelection& row, int best) {
  return row.temperature == 0 && !HasPenalty(row) && row.logit_bias.empty() &&
         std::ranges::none_of(row.banned, [best](TokenId banned) {
           return static_cast<int>(banned.value()) == best;
         });
}

}  // namespace

absl::Status TokenSelector::Select(const float* logits,
                                   int vocabulary,
                                   const TokenSelection& row,
                                   SelectedToken& selected) {
  selected = {};
  Best raw;
  RETURN_IF_ERROR(FindBest(logits, vocabulary, raw));
  int token = raw.token;
  if (row.forced.has_value()) {
    token = static_cast<int>(row.forced->value());
  } else {
    Best best = raw;
    const float* adjusted = logits;
    if (!IsGreedyAndAllowed(row, raw.token)) {
      adjusted = Adjust(logits, vocabulary, row);
    }
    if (adjusted != logits) {
      RETURN_IF_ERROR(FindBest(adjusted, vocabulary, best));
    }
    token = row.temperature == 0 ? best.token : Draw(adjusted, vocabulary, best.logit, row);
  }
  selected.token = TokenId(static_cast<std::uint32_t>(token));
  if (row.logprobs.has_value()) {
    ReportLogprobs(logits, vocabulary, raw.logit, row, selected);
  }
  return absl::OkStatus();
}

const float* TokenSelector::Adjust(const float* logits, int vocabulary, const TokenSelection& row) {
  if (!HasPenalty(row) && row.logit_bias.empty() && row.banned.empty()) {
    return logits;
  }
  adjusted_.assign(logits, logits + vocabulary);
  if (HasPenalty(row)) {
    Penalize(row);
  }
  for (const LogitBias& bias : row.logit_bias) {
    adjusted_[bias.token.value()] += bias.bias;
  }
  for (const TokenId token : row.banned) {
    adjusted_[token.value()] = kImpossible;
  }
  return adjusted_.data();
}

void TokenSelector::Penalize(const TokenSelection& row) {
  output_count_.resize(std::max(output_count_.size(), adjusted_.size()));
  seen_.resize(std::max(seen_.size(), adjusted_.size()));
  for (const TokenId token : row.history.subspan(static_cast<std::size_t>(row.prompt_tokens))) {
    ++output_count_[token.value()];
  }
  for (const TokenId token : row.history) {
    const std::size_t id = token.value();
    if (seen_[id] != 0) {
      continue;
    }
    seen_[id] = 1;
    float& logit = adjusted_[id];
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    if (output_count_[id] != 0) {
      logit -= row.frequency_penalty * static_cast<float>(output_count_[id]) + row.presence_penalty;
    }
  }
  for (const TokenId token : row.history) {
    output_count_[token.value()] = 0;
    seen_[token.value()] = 0;
  }
}

int TokenSelector::Draw(const float* logits,
                        int vocabulary,
                        float maximum,
                        const TokenSelection& row) {
  weights_.resize(static_cast<std::size_t>(vocabulary));
  // Bounded, so that no temperature, however small, makes infinity times zero.
  const float scale = std::min(1.0f / row.temperature, 1e30f);
  kernels_.softmax_weights(logits, vocabulary, maximum, scale, weights_.data());
  Filter(logits, vocabulary, row);
  const double uniform = UniformDraw(row.seed, row.position);
  if (row.top_p < 1) {
    return nucleus_.Draw(logits, maximum, weights_.data(), candidates_, row.top_p, uniform);
  }

  double total = 0;
  for (const int token : candidates_) {
    total += static_cast<double>(weights_[static_cast<std::size_t>(token)]);
  }
  const double target = uniform * total;
  double passed = 0;
  for (const int token : candidates_) {
    passed += static_cast<double>(weights_[static_cast<std::size_t>(token)]);
    if (passed > target) {
      return token;
    }
  }
  return candidates_.back();  // the draw fell on the last rounding error
}

// Leaves in candidates_ the tokens that top_k and min_p keep, by id.
void TokenSelector::Filter(const float* logits, int vocabulary, const TokenSelection& row) {
  candidates_.clear();
  for (int token = 0; token < vocabulary; ++token) {
    const float weight = weights_[static_cast<std::size_t>(token)];
    if (weight > 0 && weight >= row.min_p) {  // the most likely token has weight 1
      candidates_.push_back(token);
    }
  }
  if (row.top_k > 0 && static_cast<std::size_t>(row.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + row.top_k, candidates_.end(),
                     MoreLikely{logits});
    candidates_.resize(static_cast<std::size_t>(row.top_k));
    std::sort(candidates_.begin(), candidates_.end());
  }
}

void TokenSelector::ReportLogprobs(const float* logits,
                                   int vocabulary,
                                   float maximum,
                                   const TokenSelection& row,
                                   SelectedToken& selected) {
  weights_.resize(static_cast<std::size_t>(vocabulary));
  kernels_.softmax_weights(logits, vocabulary, maximum, 1.0f, weights_.data());
  const double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  const double log_total = static_cast<double>(maximum) + std::log(total);
  const auto logprob = [&](std::uint32_t token) {
    return static_cast<float>(static_cast<double>(logits[token]) - log_total);
  };
  selected.logprob = logprob(selected.token.value());

  candidates_.resize(static_cast<std::size_t>(vocabulary));
  std::iota(candidates_.begin(), candidates_.end(), 0);
  const auto end = candidates_.begin() + *row.logprobs;
  std::partial_sort(candidates_.begin(), end, candidates_.end(), MoreLikely{logits});
  for (auto it = candidates_.begin(); it != end; ++it) {
    const auto token = static_cast<std::uint32_t>(*it);
    selected.alternatives.push_back({TokenId(token), logprob(token)});
  }
}

}  // namespace baton
