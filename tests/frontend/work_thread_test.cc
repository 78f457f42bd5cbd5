#include "frontend/work_thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "absl/synchronization/notification.h"

namespace baton {
namespace {

TEST(WorkThread, RunsEverythingInOrderBeforeItEnds) {
  std::vector<int> order;
  {
    WorkThread thread(100);
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(thread.Post([&order, i] { order.push_back(i); }).ok());
    }
  }
  ASSERT_EQ(order.size(), 50u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(WorkThread, RefusesWhenTooMuchWaits) {
  absl::Notification begun;
  absl::Notification go;
  WorkThread thread(2);
  ASSERT_TRUE(thread
                  .Post([&] {
                    begun.Notify();
                    go.WaitForNotification();
                  })
                  .ok());
  begun.WaitForNotification();
  EXPECT_TRUE(thread.Post([] {}).ok());
  EXPECT_TRUE(thread.Post([] {}).ok());
  EXPECT_EQ(thread.Post([] {}).code(), absl::StatusCode::kResourceExhausted);
  go.Notify();
}

}  // namespace
}  // namespace baton
