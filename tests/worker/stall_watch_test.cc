#include "worker/stall_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "tests/support/wait_until.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

class StallWatchTest : public testing::Test {
 protected:
  // Looks until the watch has looked `count` more times.
  void AwaitLooks(int count) {
    const int end = looks_ + count;
    ASSERT_TRUE(WaitUntil([&] { return looks_ >= end; }));
  }

  std::atomic<int> looks_{0};
  std::atomic<bool> alive_{true};
  std::atomic<int> stalls_{0};
  std::atomic<int> recoveries_{0};
  std::optional<StallWatch> watch_{
      std::in_place,
      [this, sign = std::uint64_t{0}]() mutable {
        ++looks_;
        return alive_ ? ++sign : sign;
      },
      [this](bool stalled) { ++(stalled ? stalls_ : recoveries_); },
      StallLimits{.stalled_after = milliseconds(10), .look_every = milliseconds(1)}};
};

TEST_F(StallWatchTest, TellsOnceThatItHasStalledAndOnceThatItGoesOn) {
  AwaitLooks(30);
  EXPECT_EQ(stalls_, 0);
  for (int round = 1; round <= 3; ++round) {
    alive_ = false;
    ASSERT_TRUE(WaitUntil([&] { return stalls_ == round; }));
    AwaitLooks(30);
    EXPECT_EQ(stalls_, round);
    EXPECT_EQ(recoveries_, round - 1);
    alive_ = true;
    ASSERT_TRUE(WaitUntil([&] { return recoveries_ == round; }));
  }
}

// A pause that is shorter than the limit is none.
TEST_F(StallWatchTest, ASlowThreadIsNoStalledOne) {
  for (int i = 0; i < 20; ++i) {
    alive_ = false;
    AwaitLooks(4);
    alive_ = true;
    AwaitLooks(2);
  }
  EXPECT_EQ(stalls_, 0);
  EXPECT_EQ(recoveries_, 0);
}

TEST_F(StallWatchTest, EndsAtOnce) {
  alive_ = false;
  watch_.reset();
  const int looks = looks_;
  EXPECT_EQ(looks_, looks);
}

}  // namespace
}  // namespace baton
