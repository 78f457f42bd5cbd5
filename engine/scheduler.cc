#include "engine/scheduler.h"

#include <algorithm>
#include <optional>

#include "engine/sequence.h"

namespace baton {
namespace {

// The state while a plan is made: what the steps planned so far leave.
class Planner {
 public:
  Planner(const SchedulerLimits& limits, int free_blocks, std::span<const SequenceView> sequences)
      : limits_(limits),
        free_blocks_(free_blocks),
        budget_(limits.max_batch_tokens),
        logprob_budget_(limits.max_logprob_rows),
        sequences_(sequences.begin(), sequences.end()) {}

  StepPlan Make() {
    PlanDecodeRows();
    PlanPrefillChunks();
    PlanAdmissions();
    return std::move(plan_);
  }

 private:
  static bool Decodes(const SequenceView& sequence) {
    return sequence.phase == SequencePhase::kRunning && sequence.tokens - sequence.computed == 1;
  }

  void PlanDecodeRows() {
    for (std::size_t i = 0; i < sequences_.size() && budget_ > 0; ++i) {
      SequenceView& sequence = sequences_[i];
      if (!Decodes(sequence) || (NeedsBlock(sequence) && !MakeRoomFor(i))) {
        continue;
      }
      if (NeedsBlock(sequence)) {
        plan_.grow.push_back({sequence.id, 1});
        --free_blocks_;
      }
      plan_.rows.push_back({sequence.id, 1});
      --budget_;
    }
  }

  static bool NeedsBlock(const SequenceView& sequence) {
    return BlocksForTokens(sequence.tokens) > sequence.blocks;
  }

  // A free block for sequence `index`, by preemption if need be.
  bool MakeRoomFor(std::size_t index) {
    for (std::size_t i = sequences_.size(); free_blocks_ == 0 && i-- > index + 1;) {
      SequenceView& victim = sequences_[i];
      if (victim.phase == SequencePhase::kRunning && victim.preemptible) {
        Preempt(victim);
      }
    }
    return free_blocks_ > 0;
  }

  void Preempt(SequenceView& victim) {
    if (victim.blocks > 0) {
      plan_.preempt.push_back(victim.id);
      free_blocks_ += victim.blocks;
      victim.phase = SequencePhase::kWaiting;
      victim.blocks = 0;
      victim.computed = 0;
    }
  }

  void PlanPrefillChunks() {
    for (const SequenceView& sequence : sequences_) {
      if (sequence.phase == SequencePhase::kRunning && !Decodes(sequence)) {
        PlanChunk(sequence);
      }
    }
  }

  // A running sequence holds the blocks of all its known tokens, so a chunk never needs one.
  void PlanChunk(const SequenceView& sequence) {
    int count = std::min(budget_, sequence.tokens - sequence.computed);
    if (sequence.prompt_logprobs) {
      count = std::min(count, logprob_budget_);
      logprob_budget_ -= count;
    }
    if (count > 0) {
      plan_.rows.push_back({sequence.id, count});
      budget_ -= count;
    }
  }

  void PlanAdmissions() {
    int admitted = static_cast<int>(std::count_if(
        sequences_.begin(), sequences_.end(),
        [](const SequenceView& sequence) { return sequence.phase != SequencePhase::kWaiting; }));
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      const SequenceView& sequence = sequences_[i];
      if (sequence.phase != SequencePhase::kWaiting) {
        continue;
      }
      const int needed = BlocksForTokens(sequence.tokens) - sequence.blocks;
      // Blocks freed by a preemption in this step are meant for the sequence that asked for them.
      if (admitted >= limits_.max_sequences || !plan_.preempt.empty() ||
          needed + admitted > free_blocks_) {
        for (std::size_t j = sequences_.size();
             admitted == 0 && needed > free_blocks_ && j-- > i + 1;) {
          Preempt(sequences_[j]);
        }
        return;
      }
      plan_.admit.push_back({sequence.id, needed});
      free_blocks_ -= needed;
      ++admitted;
      if (!sequence.imports) {
        PlanChunk(sequence);
      }
    }
  }

  const SchedulerLimits limits_;
  int free_blocks_;
  int budget_;
  int logprob_budget_;
  std::vector<SequenceView> sequences_;
  StepPlan plan_;
};

}  // namespace

StepPlan PlanStep(const SchedulerLimits& limits,
                  int free_blocks,
                  std::span<const SequenceView> sequences) {
  return Planner(limits, free_blocks, sequences).Make();
}

}  // namespace baton
