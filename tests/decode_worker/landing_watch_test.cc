#include "decode_worker/landing_watch.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kTotal = 10'000'000;

class LandingWatchTest : public testing::Test {
 protected:
  // Progress at `rate` bytes a second until it gives up or `patience` has passed; when it gave up.
  std::optional<Duration> GivesUpAfter(LandingWatch& watch, double rate, Duration patience) {
    for (Duration passed{}; passed <= patience; passed += milliseconds(50)) {
      const double seconds_passed = std::chrono::duration<double>(passed).count();
      const auto bytes = static_cast<std::size_t>(rate * seconds_passed);
      watch.OnProgress(begin_ + passed, std::min(bytes, kTotal));
      if (watch.WhyGiveUp(begin_ + passed)) {
        return passed;
      }
    }
    return std::nullopt;
  }
  LandingWatch Make(std::optional<Duration> computing) {
    return LandingWatch({}, begin_, kTotal, 0, computing);
  }

  const TimePoint begin_ = TimePoint(seconds(1000));
};

TEST_F(LandingWatchTest, WaitsAsLongAsComputingWouldTakeLonger) {
  LandingWatch watch = Make(seconds(20));
  EXPECT_EQ(GivesUpAfter(watch, 1e6, seconds(10)), std::nullopt);  // ten seconds in all
  LandingWatch slower = Make(seconds(5));
  EXPECT_EQ(GivesUpAfter(slower, 1e6, seconds(10)), milliseconds(250));
}

TEST_F(LandingWatchTest, WaitsForBytesThatComeWhenNothingElseIsWanted) {
  LandingWatch watch = Make(std::nullopt);
  EXPECT_EQ(GivesUpAfter(watch, 1e5, seconds(100)), std::nullopt);
}

// A rate is that of now: a network that has become slow is not excused by what it was.
TEST_F(LandingWatchTest, SeesANetworkBecomeSlow) {
  LandingWatch watch = Make(seconds(5));
  for (int i = 1; i <= 10; ++i) {
    watch.OnProgress(begin_ + milliseconds(100) * i, 400'000 * static_cast<std::size_t>(i));
    EXPECT_EQ(watch.WhyGiveUp(begin_ + milliseconds(100) * i), std::nullopt);
  }
  std::optional<Duration> gave_up;
  for (int i = 1; i <= 30 && !gave_up; ++i) {
    const TimePoint now = begin_ + seconds(1) + milliseconds(100) * i;
    watch.OnProgress(now, 4'000'000 + 1000 * static_cast<std::size_t>(i));
    gave_up = watch.WhyGiveUp(now) ? std::optional(now - begin_) : std::nullopt;
  }
  ASSERT_TRUE(gave_up.has_value());
  EXPECT_LE(*gave_up, milliseconds(2200));
}

TEST_F(LandingWatchTest, GivesUpWhenNothingComes) {
  LandingWatch watch = Make(std::nullopt);
  watch.OnProgress(begin_ + milliseconds(500), 5'000'000);
  watch.OnProgress(begin_ + milliseconds(900), 5'000'000);  // nothing new
  EXPECT_EQ(watch.WhyGiveUp(begin_ + milliseconds(1499)), std::nullopt);
  EXPECT_NE(watch.WhyGiveUp(begin_ + milliseconds(1500)), std::nullopt);
}

// With nothing to take a rate from, as long as computing would have taken.
TEST_F(LandingWatchTest, WaitsThroughAPauseAsLongAsComputingTakes) {
  LandingWatch watch = Make(milliseconds(600));
  EXPECT_EQ(watch.WhyGiveUp(begin_ + milliseconds(599)), std::nullopt);
  EXPECT_NE(watch.WhyGiveUp(begin_ + milliseconds(600)), std::nullopt);
}

// All bytes are here, and only the owner's word that they had stayed as they were is missing.
TEST_F(LandingWatchTest, HasNoRateToJudgeWhenAllIsHere) {
  LandingWatch watch = Make(milliseconds(1));
  watch.OnProgress(begin_ + milliseconds(300), kTotal);
  EXPECT_EQ(watch.WhyGiveUp(begin_ + milliseconds(1200)), std::nullopt);
  EXPECT_NE(watch.WhyGiveUp(begin_ + milliseconds(1300)), std::nullopt);
}

TEST_F(LandingWatchTest, SaysWhy) {
  LandingWatch watch = Make(milliseconds(100));
  watch.OnProgress(begin_ + milliseconds(500), 1'000'000);
  EXPECT_EQ(*watch.WhyGiveUp(begin_ + milliseconds(500)),
            "the blocks arrive more slowly than they are computed: 2000000 bytes a second, 9000000 "
            "missing");
}

}  // namespace
}  // namespace baton
