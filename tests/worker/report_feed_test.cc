#include "worker/report_feed.h"

#include <gtest/gtest.h>

#include "tests/worker/reported_worker.h"
#include "tests/worker/test_hashes.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

class ReportFeedTest : public testing::Test {
 protected:
  // Everything that is due, as a router that reads at once gets it.
  void Drain(ReportFeed& feed) {
    for (int i = 0; i < 1000; ++i) {
      const std::optional<v1::WorkerReport> report = feed.Next(now_);
      if (!report.has_value()) {
        return;
      }
      router_.Take(*report);
    }
    FAIL() << "the feed does not end";
  }
  ReportFeed MakeFeed(const KvEventLog& log) {
    return ReportFeed(
        [this] {
          v1::WorkerDescription description;
          description.set_model("m");
          description.mutable_load()->set_waiting_sequences(++described_);
          return description;
        },
        log, {});
  }

  TimePoint now_ = TimePoint(std::chrono::hours(1));
  std::uint32_t described_ = 0;
  ReportedWorker router_;
};

TEST_F(ReportFeedTest, BeginsWithADescriptionAndASnapshot) {
  KvEventLog log;
  log.OnStored(TestHash(1));
  log.OnStored(TestHash(2));
  ReportFeed feed = MakeFeed(log);
  EXPECT_TRUE(feed.behind());
  Drain(feed);
  EXPECT_EQ(router_.descriptions(), 1);
  EXPECT_EQ(router_.snapshots(), 1);
  EXPECT_EQ(router_.held(), HashBytes({1, 2}));
  EXPECT_FALSE(feed.behind());
  EXPECT_EQ(feed.next_due(), now_ + milliseconds(200));
}

TEST_F(ReportFeedTest, AnEmptyCacheIsASnapshotToo) {
  const KvEventLog log;
  ReportFeed feed = MakeFeed(log);
  Drain(feed);
  EXPECT_EQ(router_.snapshots(), 1);
  EXPECT_TRUE(router_.held().empty());
}

TEST_F(ReportFeedTest, DescribesEveryTwoHundredMillisecondsAndWhenAsked) {
  const KvEventLog log;
  ReportFeed feed = MakeFeed(log);
  Drain(feed);
  now_ += milliseconds(199);
  Drain(feed);
  EXPECT_EQ(router_.descriptions(), 1);
  now_ += milliseconds(1);
  Drain(feed);
  EXPECT_EQ(router_.descriptions(), 2);
  EXPECT_EQ(router_.description().load().waiting_sequences(), 2u);
  feed.AskDescription();
  Drain(feed);
  EXPECT_EQ(router_.descriptions(), 3);
  EXPECT_EQ(router_.snapshots(), 1);
}

TEST_F(ReportFeedTest, ChangesComeAtOnceButNotMoreOftenThanEveryFiveMilliseconds) {
  KvEventLog log;
  ReportFeed feed = MakeFeed(log);
  Drain(feed);
  log.OnStored(TestHash(1));
  EXPECT_LE(feed.next_due(), now_);
  Drain(feed);
  EXPECT_EQ(router_.held(), HashBytes({1}));
  log.OnStored(TestHash(2));
  log.OnRemoved(TestHash(1));
  Drain(feed);
  EXPECT_EQ(router_.held(), HashBytes({1}));
  EXPECT_TRUE(feed.behind());
  EXPECT_EQ(feed.next_due(), now_ + milliseconds(5));
  now_ += milliseconds(5);
  Drain(feed);
  EXPECT_EQ(router_.held(), HashBytes({2}));
  EXPECT_EQ(router_.events(), 3);
}

TEST_F(ReportFeedTest, ManyChangesDoNotWait) {
  KvEventLog log;
  ReportFeed feed = MakeFeed(log);
  Drain(feed);
  log.OnStored(TestHash(0));
  Drain(feed);
  const auto many = static_cast<std::uint32_t>(2 * ReportFeed::kMostEvents);
  for (std::uint32_t number = 1; number <= many; ++number) {
    log.OnStored(TestHash(number));
  }
  Drain(feed);
  EXPECT_EQ(router_.held().size(), 1u + many);
}

TEST_F(ReportFeedTest, ALargeSnapshotComesInParts) {
  KvEventLog log;
  const auto blocks = static_cast<std::uint32_t>(2 * ReportFeed::kSnapshotHashes + 10);
  for (std::uint32_t number = 0; number < blocks; ++number) {
    log.OnStored(TestHash(number));
  }
  ReportFeed feed = MakeFeed(log);
  router_.Take(*feed.Next(now_));
  router_.Take(*feed.Next(now_));
  EXPECT_FALSE(router_.has_snapshot());
  // What happens meanwhile comes after it; a description may come between its parts.
  log.OnRemoved(TestHash(5));
  now_ += milliseconds(200);
  Drain(feed);
  EXPECT_EQ(router_.descriptions(), 2);
  EXPECT_EQ(router_.snapshots(), 1);
  EXPECT_EQ(router_.events(), 1);
  EXPECT_EQ(router_.held().size(), blocks - 1u);
}

TEST_F(ReportFeedTest, AResyncIsAWholeSnapshotEvenInTheMiddleOfOne) {
  KvEventLog log;
  const auto blocks = static_cast<std::uint32_t>(ReportFeed::kSnapshotHashes + 1);
  for (std::uint32_t number = 0; number < blocks; ++number) {
    log.OnStored(TestHash(number));
  }
  ReportFeed feed = MakeFeed(log);
  router_.Take(*feed.Next(now_));
  router_.Take(*feed.Next(now_));
  log.OnRemoved(TestHash(0));
  feed.AskSnapshot();
  Drain(feed);
  EXPECT_EQ(router_.snapshots(), 1);
  EXPECT_EQ(router_.held().size(), blocks - 1u);
  feed.AskSnapshot();
  Drain(feed);
  EXPECT_EQ(router_.snapshots(), 2);
  EXPECT_EQ(router_.events(), 0);
}

TEST_F(ReportFeedTest, ARouterThatIsTooSlowForTheWindowGetsASnapshot) {
  KvEventLog log(/*window=*/8);
  ReportFeed feed = MakeFeed(log);
  Drain(feed);
  for (std::uint32_t number = 0; number < 9; ++number) {
    log.OnStored(TestHash(number));
  }
  Drain(feed);
  EXPECT_EQ(router_.snapshots(), 2);
  EXPECT_EQ(router_.events(), 0);
  EXPECT_EQ(router_.held().size(), 9u);
}

}  // namespace
}  // namespace baton
