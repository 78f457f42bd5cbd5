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
    PlanAdmissions();
    PlanPrefillChunks();
    EndStandstill();
    return std::move(plan_);
  }

 private:
  struct Candidate : SequenceView {
    explicit Candidate(const SequenceView& view) : SequenceView(view) {}
    bool admitted_now = false;
  };

  static bool Decodes(const SequenceView& sequence) {
    return sequence.phase == SequencePhase::kRunning && sequence.tokens - sequence.computed == 1;
  }

  // With one token left, all others found in the cache, a sequence just admitted counts too: it
  // came too late for this step's decode rows.
  static bool Prefills(const Candidate& sequence) {
    return sequence.phase == SequencePhase::kRunning &&
           (sequence.admitted_now || !Decodes(sequence));
  }

  void PlanDecodeRows() {
    for (std::size_t i = 0; i < sequences_.size() && budget_ > 0; ++i) {
      Candidate& sequence = sequences_[i];
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
      free_blocks_ += victim.blocks - victim.shared_blocks;
      victim.phase = SequencePhase::kWaiting;
      victim.blocks = 0;
      victim.computed = 0;
    }
  }

  // A running sequence holds the blocks of all its known tokens, so a chunk never needs one.
  void PlanPrefillChunks() {
    struct Chunk {
      const SequenceView* sequence;
      int left;
      int count = 0;
    };
    std::vector<Chunk> chunks;  // oldest first
    for (const Candidate& sequence : sequences_) {
      if (Prefills(sequence)) {
        chunks.push_back({&sequence, sequence.tokens - sequence.computed});
      }
    }
    if (chunks.empty()) {
      return;
    }
    const auto give = [this](Chunk& chunk, int most) {
      int count = std::min({most, budget_, chunk.left});
      if (chunk.sequence->prompt_logprobs) {
        count = std::min(count, logprob_budget_);
        logprob_budget_ -= count;
      }
      chunk.count += count;
      chunk.left -= count;
      budget_ -= count;
    };
    give(chunks.front(), (budget_ + 1) / 2);
    std::vector<Chunk*> shortest_first;
    for (Chunk& chunk : chunks) {
      shortest_first.push_back(&chunk);
    }
    std::ranges::stable_sort(shortest_first, {}, &Chunk::left);
    for (Chunk* chunk : shortest_first) {
      give(*chunk, budget_);
    }
    for (const Chunk& chunk : chunks) {
      if (chunk.count > 0) {
        plan_.rows.push_back({chunk.sequence->id, chunk.count});
      }
    }
  }

  void PlanAdmissions() {
    auto admitted = std::ranges::count_if(sequences_, [](const Candidate& sequence) {
      return sequence.phase != SequencePhase::kWaiting;
    });
    auto prefills = std::ranges::count_if(sequences_, Prefills);
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      Candidate& sequence = sequences_[i];
      if (sequence.phase != SequencePhase::kWaiting) {
        continue;
      }
      const int leased =
          BlocksForTokens(sequence.tokens) - sequence.blocks - sequence.cached_blocks;
      const int needed = leased + sequence.idle_cached_blocks;
      const bool may_start = sequence.imports || prefills < limits_.max_prefills;
      // Blocks freed by a preemption in this step are meant for the sequence that asked for them.
      if (admitted >= limits_.max_sequences || !may_start || !plan_.preempt.empty() ||
          needed + admitted > free_blocks_) {
        for (std::size_t j = sequences_.size();
             admitted == 0 && needed > free_blocks_ && j-- > i + 1;) {
          Preempt(sequences_[j]);
        }
        return;
      }
      plan_.admit.push_back({sequence.id, leased});
      free_blocks_ -= needed;
      ++admitted;
      prefills += sequence.imports ? 0 : 1;
      sequence.phase = sequence.imports ? SequencePhase::kImporting : SequencePhase::kRunning;
      sequence.blocks += leased + sequence.cached_blocks;
      sequence.admitted_now = true;
    }
  }

  // Waiting sequences that kept blocks and running ones without a free block can hold each other
  // up: the newest gives way. An import under way will move by itself.
  void EndStandstill() {
    if (!plan_.rows.empty() || !plan_.admit.empty() || !plan_.preempt.empty() ||
        std::ranges::count(sequences_, SequencePhase::kImporting, &SequenceView::phase) > 0) {
      return;
    }
    for (std::size_t i = sequences_.size(); plan_.preempt.empty() && i-- > 1;) {
      if (sequences_[i].phase == SequencePhase::kWaiting || sequences_[i].preemptible) {
        Preempt(sequences_[i]);
      }
    }
  }

  const SchedulerLimits limits_;
  int free_blocks_;
  int budget_;
  int logprob_budget_;
  std::vector<Candidate> sequences_;
  StepPlan plan_;
};

}  // namespace

StepPlan PlanStep(const SchedulerLimits& limits,
                  int free_blocks,
                  std::span<const SequenceView> sequences) {
  return Planner(limits, free_blocks, sequences).Make();
}

}  // namespace baton
