#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/strong_id.h"
#include "kernels/tensor_view.h"

namespace baton {

struct LogitBias {
  TokenId token;
  float bias = 0;  // added to the logit; finite
};

// How the next token of one row is chosen. Defaults leave the model's distribution as it is.
//
// Steps, in this order:
//   1. Repetition penalty over the whole history, then frequency and presence penalty over its
//      output part.
//   2. Logit bias, then banned tokens are made impossible.
//   3. temperature == 0: the largest logit wins, among equals the lowest id; nothing is drawn.
//      Otherwise logits are divided by it.
//   4. top_k: the k most likely stay (among equals the lowest ids).
//   5. min_p: tokens with at least min_p times the probability of the most likely one stay.
//   6. top_p: the most likely stay, as few as reach top_p of what 4 and 5 left.
//   7. One draw. It depends on seed, position and this row's logits and parameters; never on
//      other rows.
//
// The spans belong to the caller and must live through the call.
struct TokenSelection {
  float temperature = 1;         // >= 0; 0 is greedy
  float top_p = 1;               // (0, 1]
  int top_k = 0;                 // 0: off
  float min_p = 0;               // [0, 1]
  float repetition_penalty = 1;  // > 0
  float frequency_penalty = 0;   // finite
  float presence_penalty = 0;    // finite
  std::span<const LogitBias> logit_bias;
  std::span<const TokenId> banned;   // never chosen: end-of-text before min_tokens, say
  std::span<const TokenId> history;  // prompt, then output so far
  int prompt_tokens = 0;             // the first of history that are the prompt
  std::uint64_t seed = 0;            // Philox key
  std::uint64_t position = 0;        // Philox counter: index of the new token in its sequence
  // Alternatives to report; 0 for the token's own only; absent: no log probability is computed.
  std::optional<int> logprobs;
  // Take this token and only report its log probability: echo of a prompt.
  std::optional<TokenId> forced;
};

struct TokenLogprob {
  TokenId token;
  float logprob = 0;
};

// Log probabilities are natural, of the model's own distribution: before penalties, bias,
// temperature and filters.
struct SelectedToken {
  TokenId token;
  float logprob = 0;  // 0 unless asked for
  std::vector<TokenLogprob>
      alternatives;  // most likely first, among equals the lowest id; may hold `token` itself
};

// A logit that is NaN or +infinity, or a row with no possible token, is INTERNAL: never an
// arbitrary token. A logit of -infinity is an impossible token.
struct SelectTokensArgs {
  TensorView<const float> logits;        // [R, V]
  std::span<const TokenSelection> rows;  // [R], host memory
  std::span<SelectedToken> selected;     // [R], host memory, overwritten
};

}  // namespace baton
