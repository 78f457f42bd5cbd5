#include "router/retry_budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/support/fake_clock.h"

namespace baton {
namespace {

// F28: a fleet that fails every request.
TEST(RetryBudget, ATenthOfTheRequestsMayBeTriedAgain) {
  FakeClock clock;
  RetryBudget budget({}, clock);
  for (int i = 0; i < 10'000; ++i) {
    budget.OnRequest();
    budget.TryRetry();
  }
  // A tenth of all but the first, which finds the budget full, and what was saved at the start.
  EXPECT_EQ(budget.retried(), 1'009u);
  EXPECT_EQ(budget.denied(), 10'000u - 1'009u);
}

TEST(RetryBudget, ARouterWithFewRequestsMayRetryToo) {
  FakeClock clock;
  RetryBudget budget({.share = 0.1, .floor_per_second = 0.1, .most_saved = 1}, clock);
  EXPECT_TRUE(budget.TryRetry());
  EXPECT_FALSE(budget.TryRetry());
  clock.Advance(std::chrono::seconds(9));
  EXPECT_FALSE(budget.TryRetry());
  clock.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(budget.TryRetry());
  EXPECT_FALSE(budget.TryRetry());
}

TEST(RetryBudget, SavesOnlySoMuch) {
  FakeClock clock;
  RetryBudget budget({.most_saved = 5}, clock);
  for (int i = 0; i < 1'000; ++i) {
    budget.OnRequest();
  }
  clock.Advance(std::chrono::hours(1));
  int retries = 0;
  while (budget.TryRetry()) {
    ++retries;
  }
  EXPECT_EQ(retries, 5);
}

TEST(RetryBudget, ManyThreadsGetNoMore) {
  FakeClock clock;
  RetryBudget budget({}, clock);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&budget] {
        for (int i = 0; i < 1'000; ++i) {
          budget.OnRequest();
          budget.TryRetry();
        }
      });
    }
  }
  EXPECT_LE(budget.retried(), 410u);
  EXPECT_EQ(budget.retried() + budget.denied(), 4'000u);
}

}  // namespace
}  // namespace baton
