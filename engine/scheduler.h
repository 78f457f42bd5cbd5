#pragma once

#include <span>
#include <vector>

#include "common/strong_id.h"

namespace baton {

struct SchedulerLimits {
  int max_batch_tokens = 256;  // rows of one step, decode and prefill together
  int max_sequences = 64;      // admitted at once; at most max_batch_tokens
  int max_prefills = 8;        // prompts that are computed here at once
  // Prompt tokens of one step whose log probabilities are wanted: each takes a row of logits.
  int max_logprob_rows = 64;
};

enum class SequencePhase {
  kWaiting,    // not admitted, or preempted
  kImporting,  // admitted; its KV is on the way
  kRunning,    // admitted; has tokens to compute
};

// What the scheduler needs to know of one sequence.
struct SequenceView {
  SequenceId id;
  SequencePhase phase = SequencePhase::kWaiting;
  int tokens = 0;         // prompt and output so far
  int computed = 0;       // of these, in the KV pool; when waiting: once it is admitted
  int blocks = 0;         // held
  int shared_blocks = 0;  // of these, pinned by others too: not free when it loses them
  int cached_blocks = 0;  // waiting: blocks with its content that it will share instead of leasing
  int idle_cached_blocks = 0;  // of the blocks it will share or copy, those that count as free now
  bool preemptible = false;    // may lose its blocks and be recomputed
  bool prompt_logprobs = false;  // each row of its prompt takes a row of logits
  // Waiting: its KV comes from elsewhere, so admission gives it blocks and no rows.
  bool imports = false;
};

// One step of the engine, in the order in which it is carried out.
struct StepPlan {
  struct Blocks {
    SequenceId id;
    int count = 0;  // to lease, beside those it shares
  };
  struct Rows {
    SequenceId id;
    int count = 0;  // tokens [computed, computed + count) are computed
  };

  std::vector<SequenceId> preempt;  // lose all blocks and wait again
  std::vector<Blocks> grow;         // running, need one more block for their next token
  std::vector<Blocks> admit;        // leave the queue, with the blocks of all tokens known so far
  std::vector<Rows> rows;           // at most max_batch_tokens in all
};

// Chooses the next step from the state alone; pure.
//
// `sequences` come oldest first. Decode rows (one token left to compute) go first, so that a
// running stream waits for at most one step whatever prompts arrive; prefill chunks share what is
// left of the budget: half of it is the oldest prompt's, so that none waits for ever, the rest goes
// to those that have the least left, so that a short prompt does not wait for a long one.
//
// Admission is first come, first served, when the blocks of all known tokens are free and one block
// for each admitted sequence stays over, and while fewer than max_prefills prompts are being
// computed: who is admitted later may find more in the prefix cache. A decode row without a block
// preempts the newest preemptible sequence that is newer than itself, so the oldest always
// progresses; with none newer it sits the step out. When nothing at all is admitted, waiting
// sequences that kept blocks give them up, newest first, for the one at the head of the queue. When
// those and running sequences hold each other up, the newest gives way.
StepPlan PlanStep(const SchedulerLimits& limits,
                  int free_blocks,
                  std::span<const SequenceView> sequences);

}  // namespace baton
