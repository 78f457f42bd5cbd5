#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/engine/deviceless_engine.h"

namespace baton {
namespace {

constexpr int kOperations = 100'000;
constexpr std::size_t kLongestPrompt = 110;  // with its output, half of the pool
constexpr int kMostTokens = 50;              // of an output
constexpr std::size_t kMostSequences = 12;
constexpr std::size_t kMostTransfers = 5;

// What a server's clients, peers and transports do to an engine, in any order.
class SchedulerModelTest : public testing::TestWithParam<std::uint32_t> {
 protected:
  std::size_t Below(std::size_t count) { return random_() % count; }

  // Prompts of few different tokens, many of which begin like another one's or go on from its
  // answer.
  std::vector<TokenId> RandomPrompt() {
    std::vector<TokenId> prompt;
    if (Below(4) > 0) {
      prompt = prompts_[Below(prompts_.size())];
      if (Below(3) == 0) {
        prompt.resize(1 + Below(prompt.size()));
      }
      for (std::size_t i = Below(3) * 16; i > 0; --i) {
        prompt.push_back(NextToken(SlotValues(prompt).back()));
      }
    }
    for (std::size_t i = prompt.empty() ? 1 + Below(90) : Below(20); i > 0; --i) {
      prompt.emplace_back(static_cast<std::uint32_t>(Below(2)));
    }
    prompt.resize(std::min(prompt.size(), kLongestPrompt));
    prompts_[Below(prompts_.size())] = prompt;
    return prompt;
  }

  void Submit() {
    SequenceRequest request{.prompt = RandomPrompt(),
                            .max_tokens = 1 + static_cast<int>(Below(kMostTokens))};
    const auto& live = engine_.sequences();
    const std::size_t kind = Below(10);
    if (kind < 2) {
      request.kind = SequenceKind::kImport;
    } else if (kind < 4) {
      request.kind = SequenceKind::kPrefillOnly;
    } else if (kind == 4) {
      request.prompt_logprobs = true;
    } else if (kind < 7 && !live.empty()) {
      const LiveSequence& leader = *live[Below(live.size())];
      request.prompt = leader.request.prompt;
      request.fork_of = leader.id;
    }
    engine_.Submit(std::move(request));
  }

  // Something happens to a random import, if there is one on its way.
  void MoveImport() {
    for (const auto& sequence : engine_.sequences()) {
      if (sequence->phase == SequencePhase::kImporting && Below(2) == 0) {
        const std::size_t choice = Below(4);
        if (choice < 2) {
          engine_.Adopt(*sequence);
        } else {
          engine_.LoseSource(*sequence, static_cast<int>(Below(4)), /*renew=*/choice == 2);
        }
        return;
      }
    }
  }

  void Operate() {
    const std::size_t live = engine_.sequences().size();
    const std::size_t choice = Below(20);
    if (choice < 3 && live < kMostSequences) {
      Submit();
    } else if (choice == 3 && live > 0) {
      engine_.Remove(*engine_.sequences()[Below(live)]);
    } else if (choice < 6) {
      MoveImport();
    } else if (choice == 6 || engine_.transfers().size() > kMostTransfers) {
      DropATransfer();
    } else {
      engine_.Step();
    }
  }

  void DropATransfer() {
    if (!engine_.transfers().empty()) {
      engine_.DropTransfer(Below(engine_.transfers().size()));
    }
  }

  std::mt19937 random_;
  DevicelessEngine engine_;
  std::vector<std::vector<TokenId>> prompts_ = std::vector<std::vector<TokenId>>(8, {TokenId(0)});
};

// T80, T27, T45, B39: sequences of every kind come, run, are preempted and go; blocks are shared,
// copied and given up; transports hold blocks for as long as they like and write late. Nobody reads
// a wrong value, every plan keeps the rules, and in the end everything is back.
TEST_P(SchedulerModelTest, HoldsUnderRandomOperations) {
  random_.seed(GetParam());
  for (int operation = 0; operation < kOperations; ++operation) {
    SCOPED_TRACE(absl::StrCat("seed ", GetParam(), ", operation ", operation));
    ASSERT_NO_FATAL_FAILURE(Operate());
    ASSERT_NO_FATAL_FAILURE(engine_.CheckInvariants());
  }
  const Counts& counts = engine_.counts();
  std::printf(
      "%d ended, %d preempted; blocks shared %d, copied %d, for forks %d; imports adopted "
      "%d, resumed %d, renewed %d; sent %d\n",
      counts.ended, counts.preempted, counts.shared, counts.copied, counts.forked, counts.adopted,
      counts.resumed, counts.renewed, counts.sent);
  for (const int count :
       {counts.ended, counts.preempted, counts.shared, counts.copied, counts.forked, counts.adopted,
        counts.resumed, counts.renewed, counts.sent}) {
    EXPECT_GT(count, kOperations / 2000);
  }

  int steps = 0;
  while (!engine_.sequences().empty() || !engine_.transfers().empty()) {
    ASSERT_LT(++steps, 10'000) << "somebody never ends";
    DropATransfer();
    MoveImport();
    ASSERT_NO_FATAL_FAILURE(engine_.Step());
    ASSERT_NO_FATAL_FAILURE(engine_.CheckInvariants());
  }
  EXPECT_EQ(engine_.pool().free(), kPoolBlocks);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SchedulerModelTest, testing::Range(1u, 4u));

}  // namespace
}  // namespace baton
