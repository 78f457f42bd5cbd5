#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/block_hash.h"
#include "common/clock.h"
#include "common/strong_id.h"
#include "engine/block_pool.h"
#include "kernels/select_tokens.h"

namespace baton {

class Engine;

// How tokens are chosen; ranges are checked at the RPC edge. Meaning and order of the steps:
// kernels/select_tokens.h.
struct SamplingParameters {
  float temperature = 1;  // 0: greedy
  float top_p = 1;
  int top_k = 0;  // 0: off
  float min_p = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::uint64_t seed = 0;
  std::vector<LogitBias> logit_bias;
};

enum class FinishReason { kStop, kLength };

enum class SequenceKind {
  kGenerate,     // prefill and decode here
  kPrefillOnly,  // prefill, sample the first token, end; the blocks live on through their pin
  kImport,       // the prompt's KV comes from elsewhere into blocks leased here, then decode
};

// How one sequence ended and what its life took.
struct SequenceEnd {
  absl::Status status;  // OK: `reason` holds
  FinishReason reason = FinishReason::kStop;
  Duration queue{};       // submitted to first admitted
  Duration prefill{};     // first admitted to the first token sampled here; zero when none was
  int cached_tokens = 0;  // prompt tokens whose KV was already here
  std::optional<TimePoint> adopted;  // import: when its KV joined
};

// Receives one sequence's tokens. Called on the engine thread, which must not be held up:
// implementations pass on or post.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // When prompt_logprobs was asked for: once, before the first OnToken, one entry for each token of
  // the prompt but its first, which nothing precedes.
  virtual void OnPromptLogprobs(std::vector<SelectedToken> /*tokens*/) {}
  virtual void OnToken(const SelectedToken& token) = 0;
  // Exactly once, last.
  virtual void OnEnd(const SequenceEnd& end) = 0;
};

// A pin on a sequence's blocks that may be held and dropped on any thread: the lease goes back to
// the engine's own. Must not outlive the engine.
class PinnedBlocks {
 public:
  PinnedBlocks(Engine& engine, BlockLease lease) : engine_(&engine), lease_(std::move(lease)) {}
  ~PinnedBlocks();
  PinnedBlocks(PinnedBlocks&&) noexcept = default;
  PinnedBlocks& operator=(PinnedBlocks&&) = delete;

  std::span<const BlockId> blocks() const { return lease_.blocks(); }
  std::uint64_t generation() const { return lease_.generation(); }

 private:
  Engine* engine_;  // not owned
  BlockLease lease_;
};

// What a sequence that takes part in a handoff tells its worker. Called on the engine thread;
// implementations post.
class HandoffHooks {
 public:
  virtual ~HandoffHooks() = default;
  // All blocks of the prompt are leased, in prompt order; the first `valid_blocks` hold their final
  // values already. An import is told again after each RenewImport.
  virtual void OnAdmitted(PinnedBlocks pin, int valid_blocks) = 0;
  // Prefill only: layer `layer` of the prompt's blocks [first_block, first_block + block_count) is
  // final.
  virtual void OnLayerComputed(LayerIndex layer, int first_block, int block_count) = 0;
};

struct SequenceRequest {
  SequenceKind kind = SequenceKind::kGenerate;
  std::string request_id;       // for logs
  std::vector<TokenId> prompt;  // at least one token
  SamplingParameters sampling;
  int max_tokens = 1;  // at least 1
  int min_tokens = 0;  // stop tokens are impossible before
  std::vector<TokenId> stop_tokens;
  // Log probabilities of the chosen tokens, with so many alternatives; absent: none.
  std::optional<int> logprobs;
  // Those of the prompt's tokens too, with `logprobs` alternatives. The whole prompt is computed
  // for them: hits of the prefix cache are not used.
  bool prompt_logprobs = false;
  // A sequence with the same prompt whose blocks this one takes over once they hold the prompt, for
  // n > 1. If that one ends before, this one computes the prompt itself.
  std::optional<SequenceId> fork_of;
  // Prompts share cached blocks only under the same salt and in the same residency zone.
  std::string cache_salt;
  std::string zone;
  std::optional<TimePoint> deadline;
  std::shared_ptr<TokenSink> sink;      // shared: the RPC side may go first, or the engine
  std::shared_ptr<HandoffHooks> hooks;  // shared for the same reason; null for kGenerate
};

// Blocks that `tokens` tokens need.
constexpr int BlocksForTokens(int tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace baton
