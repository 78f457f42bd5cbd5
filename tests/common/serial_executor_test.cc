#include "common/serial_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/synchronization/notification.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

TEST(SerialExecutor, RunsPostedTasksInOrder) {
  std::vector<int> order;
  {
    SerialExecutor executor;
    for (int i = 0; i < 100; ++i) {
      executor.Post([&order, i] { order.push_back(i); });
    }
  }
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(SerialExecutor, TimedTasksRunByTimeAndNotBefore) {
  std::vector<int> order;
  absl::Notification done;
  SerialExecutor executor;
  const TimePoint start = Clock::System().Now();
  TimePoint ran;
  executor.PostAt(start + milliseconds(40), [&] {
    order.push_back(2);
    ran = Clock::System().Now();
    done.Notify();
  });
  executor.PostAt(start + milliseconds(10), [&order] { order.push_back(1); });
  executor.Post([&order] { order.push_back(0); });

  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(10)));

  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2));
  EXPECT_GE(ran - start, milliseconds(40));
}

TEST(SerialExecutor, DestructionDropsWhatIsTimedForLater) {
  bool ran = false;
  {
    SerialExecutor executor;
    executor.PostAt(Clock::System().Now() + std::chrono::hours(1), [&ran] { ran = true; });
  }
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace baton
