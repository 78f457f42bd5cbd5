#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/sequence.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

MATCHER_P2(Is, id, count, "") {
  return arg.id.value() == static_cast<std::uint64_t>(id) && arg.count == count;
}

SequenceView Waiting(std::uint64_t id, int tokens) {
  return {.id = SequenceId(id),
          .phase = SequencePhase::kWaiting,
          .tokens = tokens,
          .preemptible = true};
}

SequenceView Running(std::uint64_t id, int tokens, int computed) {
  return {.id = SequenceId(id),
          .phase = SequencePhase::kRunning,
          .tokens = tokens,
          .computed = computed,
          .blocks = BlocksForTokens(tokens),
          .preemptible = true};
}

SequenceView NeedsBlock(std::uint64_t id, int blocks) {
  SequenceView view = Running(id, blocks * 16 + 1, blocks * 16);
  view.blocks = blocks;
  return view;
}

constexpr SchedulerLimits kLimits{.max_batch_tokens = 32, .max_sequences = 4};

TEST(Scheduler, AdmitsInOrderAndStartsAtOnce) {
  const std::vector<SequenceView> state = {Waiting(1, 20), Waiting(2, 40)};
  const StepPlan plan = PlanStep(kLimits, 10, state);
  EXPECT_THAT(plan.admit, ElementsAre(Is(1, 2), Is(2, 3)));
  EXPECT_THAT(plan.rows, ElementsAre(Is(1, 20), Is(2, 12)));
}

TEST(Scheduler, DecodeRowsGoBeforeAnyPrefillChunk) {
  const std::vector<SequenceView> state = {Running(1, 500, 0), Running(2, 20, 19),
                                           Running(3, 9, 8)};
  const StepPlan plan = PlanStep(kLimits, 10, state);
  EXPECT_THAT(plan.rows, ElementsAre(Is(2, 1), Is(3, 1), Is(1, 30)));
}

// Half of the budget is the oldest prompt's; the other half goes where it ends a wait soonest.
TEST(Scheduler, AShortPromptDoesNotWaitForALongOneNorTheOtherWayRound) {
  const std::vector<SequenceView> state = {Running(1, 500, 0), Running(2, 100, 0),
                                           Running(3, 14, 4)};
  EXPECT_THAT(PlanStep(kLimits, 10, state).rows, ElementsAre(Is(1, 16), Is(2, 6), Is(3, 10)));
  const std::vector<SequenceView> equals = {Running(1, 100, 0), Running(2, 100, 0)};
  EXPECT_THAT(PlanStep(kLimits, 10, equals).rows, ElementsAre(Is(1, 32)));
}

TEST(Scheduler, FewPromptsAreComputedAtOnce) {
  SchedulerLimits limits = kLimits;
  limits.max_prefills = 2;
  const std::vector<SequenceView> state = {Running(1, 500, 0), Waiting(2, 20), Waiting(3, 20)};
  EXPECT_THAT(PlanStep(limits, 10, state).admit, ElementsAre(Is(2, 2)));
}

TEST(Scheduler, CachedBlocksAreNotLeasedAndTheirTokensNotComputed) {
  SequenceView cached = Waiting(1, 40);
  cached.computed = 32;
  cached.cached_blocks = 2;
  const StepPlan plan = PlanStep(kLimits, 1, std::vector<SequenceView>{cached});
  EXPECT_THAT(plan.admit, ElementsAre(Is(1, 1)));
  EXPECT_THAT(plan.rows, ElementsAre(Is(1, 8)));
  cached.idle_cached_blocks = 2;  // they count as free until it takes them
  EXPECT_THAT(PlanStep(kLimits, 2, std::vector<SequenceView>{cached}).admit, IsEmpty());
  EXPECT_THAT(PlanStep(kLimits, 3, std::vector<SequenceView>{cached}).admit, ElementsAre(Is(1, 1)));
}

// T23: one token is left of a prompt that is cached as a whole.
TEST(Scheduler, AWholeHitGetsItsRowInTheStepThatAdmitsIt) {
  SequenceView cached = Waiting(2, 32);
  cached.computed = 31;
  cached.cached_blocks = 1;
  const std::vector<SequenceView> state = {Running(1, 20, 19), cached};
  const StepPlan plan = PlanStep(kLimits, 4, state);
  EXPECT_THAT(plan.admit, ElementsAre(Is(2, 1)));
  EXPECT_THAT(plan.rows, ElementsAre(Is(1, 1), Is(2, 1)));
}

TEST(Scheduler, RowsOfLogitsForPromptTokensAreBounded) {
  SchedulerLimits limits = kLimits;
  limits.max_logprob_rows = 8;
  std::vector<SequenceView> state = {Running(1, 100, 0), Running(2, 100, 0), Running(3, 100, 0)};
  state[0].prompt_logprobs = state[1].prompt_logprobs = true;
  EXPECT_THAT(PlanStep(limits, 10, state).rows, ElementsAre(Is(1, 8), Is(3, 24)));
}

TEST(Scheduler, NobodyOvertakesTheHeadOfTheQueue) {
  const std::vector<SequenceView> state = {Waiting(1, 160), Waiting(2, 1)};
  const StepPlan plan = PlanStep(kLimits, 9, state);
  EXPECT_THAT(plan.admit, IsEmpty());
  EXPECT_THAT(plan.rows, IsEmpty());
}

TEST(Scheduler, AdmissionLeavesABlockForEachAdmittedSequence) {
  const std::vector<SequenceView> state = {Running(1, 20, 19), Waiting(2, 32)};
  EXPECT_THAT(PlanStep(kLimits, 2, state).admit, IsEmpty());
  EXPECT_THAT(PlanStep(kLimits, 3, state).admit, ElementsAre(Is(2, 2)));
}

TEST(Scheduler, KeepsToTheMostSequences) {
  const std::vector<SequenceView> state = {Running(1, 2, 1), Running(2, 2, 1), Running(3, 2, 1),
                                           Running(4, 2, 1), Waiting(5, 1)};
  EXPECT_THAT(PlanStep(kLimits, 100, state).admit, IsEmpty());
}

TEST(Scheduler, AnImportGetsBlocksAndNoRows) {
  SequenceView import = Waiting(1, 33);
  import.imports = true;
  import.preemptible = false;
  const std::vector<SequenceView> state = {import, Waiting(2, 1)};
  const StepPlan plan = PlanStep(kLimits, 10, state);
  EXPECT_THAT(plan.admit, ElementsAre(Is(1, 3), Is(2, 1)));
  EXPECT_THAT(plan.rows, ElementsAre(Is(2, 1)));
}

TEST(Scheduler, GrowsARunningSequenceAtABlockBoundary) {
  const std::vector<SequenceView> state = {NeedsBlock(1, 2)};
  const StepPlan plan = PlanStep(kLimits, 1, state);
  EXPECT_THAT(plan.grow, ElementsAre(Is(1, 1)));
  EXPECT_THAT(plan.rows, ElementsAre(Is(1, 1)));
}

// F26: the newest gives way, the oldest goes on.
TEST(Scheduler, PreemptsTheNewestForTheOldest) {
  const std::vector<SequenceView> state = {NeedsBlock(1, 2), Running(2, 20, 19),
                                           Running(3, 20, 19)};
  const StepPlan plan = PlanStep(kLimits, 0, state);
  EXPECT_THAT(plan.preempt, ElementsAre(SequenceId(3)));
  EXPECT_THAT(plan.rows, ElementsAre(Is(1, 1), Is(2, 1)));
  EXPECT_THAT(plan.admit, IsEmpty());
}

// Blocks that another sequence or a transfer pins as well do not come free with the victim.
TEST(Scheduler, CountsOnlyWhatAPreemptionFrees) {
  std::vector<SequenceView> state = {NeedsBlock(1, 2), Running(2, 40, 39), Running(3, 20, 19)};
  state[2].shared_blocks = 2;
  const StepPlan plan = PlanStep(kLimits, 0, state);
  EXPECT_THAT(plan.preempt, ElementsAre(SequenceId(3), SequenceId(2)));
  EXPECT_THAT(plan.grow, ElementsAre(Is(1, 1)));
  state[1].shared_blocks = 3;
  EXPECT_THAT(PlanStep(kLimits, 0, state).grow, IsEmpty());
}

TEST(Scheduler, WithNobodyNewerToPreemptARowSitsOut) {
  const std::vector<SequenceView> state = {Running(1, 20, 19), NeedsBlock(2, 2)};
  const StepPlan plan = PlanStep(kLimits, 0, state);
  EXPECT_THAT(plan.preempt, IsEmpty());
  EXPECT_THAT(plan.rows, ElementsAre(Is(1, 1)));
}

TEST(Scheduler, NeverTakesBlocksThatATransferUses) {
  SequenceView pinned = Running(2, 40, 3);
  pinned.preemptible = false;
  const std::vector<SequenceView> state = {NeedsBlock(1, 2), pinned};
  const StepPlan plan = PlanStep(kLimits, 0, state);
  EXPECT_THAT(plan.preempt, IsEmpty());
  EXPECT_THAT(plan.rows, ElementsAre(Is(2, 32)));
}

// T27: sequences that wait with blocks in hand cannot block each other for ever.
TEST(Scheduler, WhenNothingIsAdmittedTheHeadGetsTheBlocksOfThoseBehind) {
  SequenceView first = Waiting(1, 48);
  SequenceView second = Waiting(2, 48);
  first.blocks = second.blocks = 2;
  const StepPlan plan = PlanStep(kLimits, 0, std::vector<SequenceView>{first, second});
  EXPECT_THAT(plan.preempt, ElementsAre(SequenceId(2)));

  second.blocks = 0;
  EXPECT_THAT(PlanStep(kLimits, 2, std::vector<SequenceView>{first, second}).admit,
              ElementsAre(Is(1, 1)));
}

// T27: likewise one that runs and needs a block, and one that waits and keeps the others.
TEST(Scheduler, ARunningAndAWaitingSequenceDoNotHoldEachOtherUp) {
  SequenceView waiting = Waiting(2, 48);
  waiting.blocks = 3;
  EXPECT_THAT(PlanStep(kLimits, 0, std::vector<SequenceView>{NeedsBlock(1, 2), waiting}).preempt,
              ElementsAre(SequenceId(2)));
  waiting.id = SequenceId(0);  // the older one
  EXPECT_THAT(PlanStep(kLimits, 0, std::vector<SequenceView>{waiting, NeedsBlock(1, 2)}).preempt,
              ElementsAre(SequenceId(1)));
  SequenceView importing = Running(3, 20, 0);
  importing.phase = SequencePhase::kImporting;
  const std::vector<SequenceView> moving = {waiting, NeedsBlock(1, 2), importing};
  EXPECT_THAT(PlanStep(kLimits, 0, moving).preempt, IsEmpty());
}

// Every sequence ends, oldest first when blocks are short, whatever sizes arrive; and no step
// breaks a limit.
TEST(Scheduler, RunsRandomLoadsToTheEnd) {
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    constexpr int kPool = 12;
    int free = kPool;
    std::vector<SequenceView> live;
    std::vector<int> ends;  // tokens at which the sequence is done
    for (std::uint64_t id = 1; id <= 12; ++id) {
      live.push_back(Waiting(id, 1 + static_cast<int>(random() % 100)));
      ends.push_back(live.back().tokens + 1 + static_cast<int>(random() % 60));
    }
    int steps = 0;
    while (!live.empty()) {
      ASSERT_LT(++steps, 20000);
      const StepPlan plan = PlanStep(kLimits, free, live);
      const auto find = [&](SequenceId id) {
        return std::find_if(live.begin(), live.end(),
                            [id](const auto& view) { return view.id == id; });
      };
      for (const SequenceId id : plan.preempt) {
        const auto it = find(id);
        free += it->blocks;
        it->blocks = 0;
        it->computed = 0;
        it->phase = SequencePhase::kWaiting;
      }
      for (const auto* leases : {&plan.grow, &plan.admit}) {
        for (const auto& lease : *leases) {
          const auto it = find(lease.id);
          free -= lease.count;
          it->blocks += lease.count;
          it->phase = SequencePhase::kRunning;
        }
      }
      ASSERT_GE(free, 0);
      int rows = 0;
      for (const auto& row : plan.rows) {
        const auto it = find(row.id);
        ASSERT_EQ(it->phase, SequencePhase::kRunning);
        it->computed += row.count;
        rows += row.count;
        ASSERT_LE(it->computed, it->tokens);
        ASSERT_LE(BlocksForTokens(it->computed), it->blocks);
        it->tokens += it->computed == it->tokens ? 1 : 0;
      }
      ASSERT_LE(rows, kLimits.max_batch_tokens);
      ASSERT_TRUE(rows > 0 || !plan.preempt.empty() || !plan.admit.empty()) << "no progress";
      for (std::size_t i = live.size(); i-- > 0;) {
        if (live[i].tokens >= ends[i]) {
          free += live[i].blocks;
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
          ends.erase(ends.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
    }
    EXPECT_EQ(free, kPool);
  }
}

}  // namespace
}  // namespace baton
