#include "router/pair_health.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace baton {
namespace {

class PairHealthTest : public testing::Test {
 protected:
  static PairHealth::Pair MakePair(std::uint32_t decode, std::uint32_t prefill) {
    return {{WorkerSlot(decode), InstanceId{{static_cast<std::uint8_t>(decode)}}},
            {WorkerSlot(prefill), InstanceId{{static_cast<std::uint8_t>(prefill)}}}};
  }

  FakeClock clock_;
  PairHealth health_{clock_};
};

// F15: the pair, not the workers.
TEST_F(PairHealthTest, AFailureCutsThisPairForAWhile) {
  health_.NoteFailure(MakePair(1, 2));
  EXPECT_EQ(health_.Cut(), std::vector<PairHealth::Pair>{MakePair(1, 2)});
  clock_.Advance(PairHealth::kFirstPause);
  EXPECT_TRUE(health_.Cut().empty());
}

TEST_F(PairHealthTest, EveryFurtherFailureCutsItForLongerUpToALimit) {
  auto pause = PairHealth::kFirstPause;
  for (int i = 0; i < 6; ++i) {
    health_.NoteFailure(MakePair(1, 2));
    health_.NoteFailure(MakePair(1, 2));  // of a request that had begun before: no further one
    clock_.Advance(pause - std::chrono::milliseconds(1));
    EXPECT_EQ(health_.Cut().size(), 1u) << i;
    clock_.Advance(std::chrono::milliseconds(1));
    EXPECT_TRUE(health_.Cut().empty()) << i;
    pause = std::min(2 * pause, PairHealth::kLongestPause);
  }
}

TEST_F(PairHealthTest, ASuccessEndsItAtOnce) {
  health_.NoteFailure(MakePair(1, 2));
  health_.NoteFailure(MakePair(1, 3));
  health_.NoteSuccess(MakePair(1, 2));
  EXPECT_EQ(health_.Cut(), std::vector<PairHealth::Pair>{MakePair(1, 3)});
}

}  // namespace
}  // namespace baton
