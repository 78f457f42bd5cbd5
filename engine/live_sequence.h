#pragma once

#include <optional>
#include <vector>

#include "common/block_hash.h"
#include "engine/block_pool.h"
#include "engine/prefix_cache.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace baton {

// Blocks that already hold the beginning of a waiting sequence's tokens.
struct PrefixHit {
  std::vector<BlockId> shared;  // whole blocks, in order
  std::optional<BlockId>
      copied;      // the one behind them, in which the sequence writes: a copy is made
  int tokens = 0;  // that need not be computed; at least one is left
};

// One sequence from its submission to its end, as the engine keeps it. Engine thread only.
struct LiveSequence {
  SequenceId id;
  SequenceRequest request;
  SequencePhase phase = SequencePhase::kWaiting;
  bool importing = false;       // admission leads to kImporting
  std::vector<TokenId> tokens;  // prompt, then output
  int computed = 0;             // of these, in the KV pool
  BlockLease lease;
  std::vector<PrefixHash> hashes;  // the root, then of full blocks of `tokens`; empty: not cached
  int registered = 0;              // blocks of the lease that the prefix cache knows
  PrefixHit hit;                   // waiting: found for this step's plan
  std::vector<SelectedToken> prompt_logprobs;  // of tokens 1, 2, ... of the prompt so far
  bool ended = false;
  TimePoint submitted;
  std::optional<TimePoint> admitted;
  SequenceEnd end;

  int known() const { return static_cast<int>(tokens.size()); }
  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  int output_tokens() const { return known() - prompt_tokens(); }
  bool wants_prompt_logprobs() const { return request.prompt_logprobs && output_tokens() == 0; }
  // Whether the row of token `position` is to give the log probability of the one after it. After a
  // preemption the first ones are there already.
  bool WantsPromptLogprob(int position) const {
    return wants_prompt_logprobs() && position + 1 < prompt_tokens() &&
           position >= static_cast<int>(prompt_logprobs.size());
  }
  bool preemptible() const { return request.kind != SequenceKind::kPrefillOnly && !importing; }
  // Its KV of the whole prompt is in the pool.
  bool holds_prompt() const {
    return phase == SequencePhase::kRunning && computed >= prompt_tokens();
  }
  // Its prompt, or its output after a preemption, is being computed here.
  bool prefills() const { return phase == SequencePhase::kRunning && known() - computed > 1; }
  // Its prompt is there and it makes a token a step.
  bool decodes() const {
    return phase == SequencePhase::kRunning && output_tokens() > 0 && known() - computed == 1;
  }
  // Before it decodes; the next token is sampled from the last of them. None when the KV is to come
  // from elsewhere or from the sequence that it forks from.
  int tokens_to_compute() const {
    if (importing || (may_share() && request.fork_of.has_value() && output_tokens() == 0)) {
      return 0;
    }
    return known() - (may_share() ? hit.tokens : computed);
  }
  // Starts without any block of its own, so that it can begin with those of others.
  bool may_share() const { return phase == SequencePhase::kWaiting && lease.size() == 0; }

  // Hashes of the full blocks of `tokens`, which may have grown since the last call. Empty when the
  // sequence is not to be cached.
  std::span<const PrefixHash> BlockHashes();
};

// The longest known beginning of `sequence`. `cache` may be null; `leader` is the sequence that it
// forks from, or null. REQUIRES: may_share().
PrefixHit FindPrefix(LiveSequence& sequence, const PrefixCache* cache, const LiveSequence* leader);

}  // namespace baton
