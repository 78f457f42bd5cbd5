#include "frontend/timer_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(TimerThread, RunsInTheOrderOfTheTimes) {
  absl::Mutex mutex;
  std::vector<int> order;
  const auto note = [&](int number) {
    return [&mutex, &order, number] {
      absl::MutexLock lock(&mutex);
      order.push_back(number);
    };
  };
  TimerThread timer;
  const TimePoint now = Clock::System().Now();
  timer.Schedule(now + milliseconds(40), note(3));
  timer.Schedule(now + milliseconds(20), note(2));
  timer.Schedule(now - hours(1), note(1));

  EXPECT_TRUE(WaitUntil([&] {
    absl::MutexLock lock(&mutex);
    return order.size() == 3;
  }));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(TimerThread, WhatIsCancelledDoesNotRun) {
  std::atomic<int> runs{0};
  TimerThread timer;
  const TimePoint now = Clock::System().Now();
  const TimerThread::Key cancelled =
      timer.Schedule(now + milliseconds(20), [&runs] { runs += 100; });
  timer.Schedule(now + milliseconds(30), [&runs] { runs += 1; });
  timer.Cancel(cancelled);
  timer.Cancel(cancelled);

  EXPECT_TRUE(WaitUntil([&runs] { return runs > 0; }));
  EXPECT_EQ(runs, 1);
}

TEST(TimerThread, EndsWithoutWaitingForWhatIsFarAway) {
  const TimePoint begin = Clock::System().Now();
  {
    TimerThread timer;
    timer.Schedule(begin + hours(1), [] {});
  }
  EXPECT_LT(Clock::System().Now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace baton
