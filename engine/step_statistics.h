#pragma once

#include <cstdint>
#include <span>

#include "common/clock.h"
#include "kernels/operation_times.h"

namespace baton {

// What one step of an engine did and where its time went.
struct StepStatistics {
  TimePoint start;
  Duration duration{};    // from the look at the state to the last token handed out
  Duration scheduling{};  // of this, at its start: plan, blocks leased, returned and copied
  Duration scheduling_operations{};  // of the scheduling: in operations, which copy blocks

  int prefill_rows = 0;                     // rows computed of prompts, after a preemption again
  int decode_rows = 0;                      // rows computed of output tokens
  int decode_sequences = 0;                 // sequences with rows of output tokens
  std::uint64_t decode_context_tokens = 0;  // of these, together
  int preempted = 0;                        // sequences that lost their blocks
  int cached_tokens = 0;  // tokens, of sequences admitted now, whose KV was here already

  // What came of the rows; zero when the step failed or was abandoned.
  int prefilled_tokens = 0;  // of prompts, now in the pool: what EngineLoad adds up
  int sampled_tokens = 0;    // likewise
  // Tokens of the prompts whose first token was sampled in this step, cached ones included. Each
  // prompt counts once, forks of it do not count, in the engine that samples its first token.
  int prompt_tokens = 0;

  // When the step was over.
  int running = 0;  // admitted, importing ones included
  int waiting = 0;
  int free_blocks = 0;

  // Of the engine's backend, when it is a ProfiledBackend (EngineOptions::profile); else zero.
  OperationTimes operations;
  std::span<const OperationCall> calls;  // during OnStep only; empty unless they are kept

  int rows() const { return prefill_rows + decode_rows; }
};

// Hears of every step of an engine that did something. Called on the engine thread, which must not
// be held up: implementations add up or pass on.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void OnStep(const StepStatistics& step) = 0;
};

}  // namespace baton
