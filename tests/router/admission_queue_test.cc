#include "router/admission_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace baton {
namespace {

using testing::ElementsAre;

AdmissionQueue::Entry Make(std::uint64_t number,
                           const std::string& tenant,
                           std::int32_t priority = 0,
                           std::uint64_t cost_tokens = 256) {
  return {.number = number, .tenant = tenant, .priority = priority, .cost_tokens = cost_tokens};
}

std::vector<std::uint64_t> TakeAll(AdmissionQueue& queue) {
  std::vector<std::uint64_t> order;
  while (const std::optional<std::uint64_t> front = queue.Front()) {
    EXPECT_EQ(queue.Front(), front) << "asking changes nothing";
    order.push_back(*front);
    EXPECT_TRUE(queue.Erase(*front));
  }
  EXPECT_TRUE(queue.empty());
  return order;
}

TEST(AdmissionQueue, OneTenantIsServedInOrder) {
  AdmissionQueue queue;
  for (std::uint64_t i = 1; i <= 5; ++i) {
    queue.Push(Make(i, "a", 0, 1000 * i));
  }
  EXPECT_EQ(queue.size(), 5u);
  EXPECT_THAT(TakeAll(queue), ElementsAre(1, 2, 3, 4, 5));
}

TEST(AdmissionQueue, LowerPriorityNumbersGoFirst) {
  AdmissionQueue queue;
  queue.Push(Make(1, "a", 5));
  queue.Push(Make(2, "a", 0));
  queue.Push(Make(3, "b", -1));
  EXPECT_EQ(queue.Front(), 3u);
  queue.Push(Make(4, "c", -7));
  EXPECT_THAT(TakeAll(queue), ElementsAre(4, 3, 2, 1));
}

TEST(AdmissionQueue, TenantsTakeTurns) {
  AdmissionQueue queue;
  for (std::uint64_t i = 1; i <= 4; ++i) {
    queue.Push(Make(i, "flood"));
  }
  queue.Push(Make(10, "other"));
  queue.Push(Make(11, "other"));
  EXPECT_THAT(TakeAll(queue), ElementsAre(1, 10, 2, 11, 3, 4));
}

// A tenant that comes back again and again with one request does not jump the other's line.
TEST(AdmissionQueue, ComingBackGivesNoAdvantage) {
  AdmissionQueue queue;
  for (std::uint64_t i = 0; i < 100; ++i) {
    queue.Push(Make(i, "flood"));
  }
  queue.Push(Make(1000, "returning"));
  std::map<bool, int> served;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const std::uint64_t front = *queue.Front();
    queue.Erase(front);
    const bool returning = front >= 1000;
    ++served[returning];
    if (returning) {
      queue.Push(Make(front + 1, "returning"));
    }
  }
  EXPECT_NEAR(served[true], 50, 1);
}

TEST(AdmissionQueue, SharesTokensNotRequests) {
  AdmissionQueue queue;
  std::map<std::uint64_t, std::uint64_t> costs;
  for (std::uint64_t i = 0; i < 100; ++i) {
    queue.Push(Make(i, "long", 0, costs[i] = 8000));
  }
  for (std::uint64_t i = 100; i < 1100; ++i) {
    queue.Push(Make(i, "short", 0, costs[i] = 400));
  }
  std::uint64_t of_long = 0;
  std::uint64_t all = 0;
  for (int i = 0; i < 400; ++i) {  // neither runs out
    const std::uint64_t front = *queue.Front();
    queue.Erase(front);
    all += costs[front];
    of_long += front < 100 ? costs[front] : 0;
  }
  EXPECT_NEAR(static_cast<double>(of_long) / static_cast<double>(all), 0.5, 0.05);
}

TEST(AdmissionQueue, AFullQueueMakesRoomForTheMoreUrgent) {
  AdmissionQueue queue;
  EXPECT_EQ(queue.Displaced("x", 0), std::nullopt);
  queue.Push(Make(1, "a", 3));
  queue.Push(Make(2, "a", 3));
  queue.Push(Make(3, "b", 3));
  queue.Push(Make(4, "b", 1));
  EXPECT_EQ(queue.Displaced("x", 2), 2u) << "the last of the longest line of the least urgent";
  EXPECT_EQ(queue.Displaced("a", 2), 2u);
  EXPECT_EQ(queue.Displaced("x", 4), std::nullopt) << "the new one is the least urgent";
}

TEST(AdmissionQueue, AFullQueueMakesRoomForATenantWithLess) {
  AdmissionQueue queue;
  for (std::uint64_t i = 1; i <= 3; ++i) {
    queue.Push(Make(i, "flood"));
  }
  EXPECT_EQ(queue.Displaced("other", 0), 3u);
  EXPECT_EQ(queue.Displaced("flood", 0), std::nullopt);
  queue.Push(Make(4, "other"));
  EXPECT_EQ(queue.Displaced("other", 0), 3u);
  queue.Push(Make(5, "other"));
  EXPECT_EQ(queue.Displaced("other", 0), std::nullopt) << "they would be three to two";
}

TEST(AdmissionQueue, ErasedOnesAreNeverServed) {
  AdmissionQueue queue;
  EXPECT_FALSE(queue.Erase(1));
  for (std::uint64_t i = 1; i <= 6; ++i) {
    queue.Push(Make(i, i % 2 == 0 ? "a" : "b", 0, 5000));
  }
  queue.Front();
  for (const std::uint64_t gone : {1u, 4u, 6u}) {
    EXPECT_TRUE(queue.Erase(gone));
    EXPECT_FALSE(queue.Erase(gone));
  }
  const std::vector<std::uint64_t> rest = TakeAll(queue);
  EXPECT_THAT(rest, testing::UnorderedElementsAre(2, 3, 5));
}

// Whatever comes and goes: everything is served once, in the order of priority.
TEST(AdmissionQueue, RandomOperationsLoseNothing) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  AdmissionQueue queue;
  std::map<std::uint64_t, std::int32_t> waiting;
  for (std::uint64_t number = 1; number <= 20'000; ++number) {
    const unsigned what = random() % 10;
    if (what < 5) {
      const auto priority = static_cast<std::int32_t>(random() % 3);
      queue.Push(Make(number, std::string(1, static_cast<char>('a' + random() % 5)), priority,
                      1 + random() % 9000));
      waiting[number] = priority;
    } else if (what < 7 && !waiting.empty()) {
      const auto victim =
          std::next(waiting.begin(), static_cast<std::ptrdiff_t>(random() % waiting.size()));
      EXPECT_TRUE(queue.Erase(victim->first));
      waiting.erase(victim);
    } else if (const auto front = queue.Front()) {
      ASSERT_TRUE(waiting.contains(*front));
      for (const auto& [other, priority] : waiting) {
        ASSERT_LE(waiting[*front], priority) << other;
      }
      EXPECT_TRUE(queue.Erase(*front));
      waiting.erase(*front);
    }
    ASSERT_EQ(queue.size(), waiting.size());
  }
  EXPECT_EQ(TakeAll(queue).size(), waiting.size());
}

}  // namespace
}  // namespace baton
