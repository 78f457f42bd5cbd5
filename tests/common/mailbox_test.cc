#include "common/mailbox.h"

#include <gtest/gtest.h>

#include <thread>

namespace baton {
namespace {

TEST(Mailbox, KeepsOrderAndRefusesWhenFull) {
  Mailbox<int> mailbox(2);
  EXPECT_TRUE(mailbox.Push(1).ok());
  EXPECT_TRUE(mailbox.Push(2).ok());
  EXPECT_EQ(mailbox.Push(3).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(mailbox.PushEnding(4).ok());

  EXPECT_EQ(mailbox.PopAll(absl::ZeroDuration()), (std::deque<int>{1, 2, 4}));
  EXPECT_TRUE(mailbox.PopAll(absl::ZeroDuration()).empty());
}

TEST(Mailbox, AfterCloseRefusesButStillHandsOutWhatWaits) {
  Mailbox<int> mailbox(2);
  EXPECT_TRUE(mailbox.Push(1).ok());
  mailbox.Close();

  EXPECT_EQ(mailbox.Push(2).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(mailbox.PushEnding(2).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(mailbox.PopAll(absl::InfiniteDuration()).size(), 1u);
  EXPECT_TRUE(mailbox.PopAll(absl::InfiniteDuration()).empty());
  EXPECT_TRUE(mailbox.closed());
}

TEST(Mailbox, LosesNothingBetweenManyProducersAndOneConsumer) {
  constexpr int kProducers = 4;
  constexpr int kEach = 2000;
  Mailbox<int> mailbox(kProducers * kEach);
  std::vector<std::jthread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&mailbox] {
      for (int i = 0; i < kEach; ++i) {
        EXPECT_TRUE(mailbox.Push(i).ok());
      }
    });
  }
  std::size_t seen = 0;
  while (seen < kProducers * kEach) {
    const std::deque<int> batch = mailbox.PopAll(absl::Seconds(20));
    ASSERT_FALSE(batch.empty());
    seen += batch.size();
  }
  EXPECT_EQ(seen, static_cast<std::size_t>(kProducers * kEach));
}

TEST(Mailbox, WakesAConsumerThatSleepsElsewhere) {
  int wakes = 0;
  Mailbox<int> mailbox(1, [&wakes] { ++wakes; });
  EXPECT_TRUE(mailbox.Push(1).ok());
  EXPECT_FALSE(mailbox.Push(2).ok());
  mailbox.Close();
  EXPECT_EQ(wakes, 2);
}

}  // namespace
}  // namespace baton
