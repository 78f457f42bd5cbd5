#include "worker/kv_event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "tests/worker/test_hashes.h"

namespace baton {
namespace {

using testing::SizeIs;
using testing::UnorderedElementsAre;

TEST(KvEventLog, ASnapshotIsWhatIsHeldAndNamesTheChangeAfterIt) {
  KvEventLog log;
  for (const std::uint32_t number : {1u, 2u, 3u}) {
    log.OnStored(TestHash(number));
  }
  log.OnRemoved(TestHash(1));
  const KvEventLog::Snapshot snapshot = log.TakeSnapshot();
  EXPECT_THAT(snapshot.hashes, UnorderedElementsAre(TestHash(2), TestHash(3)));
  EXPECT_EQ(snapshot.next_event, 4u);
  log.OnRemoved(TestHash(3));
  log.OnStored(TestHash(1));
  const auto changes = log.ReadFrom(4, 100);
  ASSERT_TRUE(changes.has_value());
  ASSERT_THAT(*changes, SizeIs(2));
  EXPECT_EQ((*changes)[0].hash, TestHash(3));
  EXPECT_FALSE((*changes)[0].stored);
  EXPECT_EQ((*changes)[1].hash, TestHash(1));
  EXPECT_TRUE((*changes)[1].stored);
}

TEST(KvEventLog, ReadsNoMoreThanAsked) {
  KvEventLog log;
  for (std::uint32_t number = 0; number < 10; ++number) {
    log.OnStored(TestHash(number));
  }
  EXPECT_THAT(*log.ReadFrom(0, 4), SizeIs(4));
  EXPECT_THAT(*log.ReadFrom(8, 4), SizeIs(2));
  EXPECT_EQ((*log.ReadFrom(8, 4))[0].hash, TestHash(8));
  EXPECT_THAT(*log.ReadFrom(10, 4), SizeIs(0));
  EXPECT_FALSE(log.ReadFrom(11, 4).has_value());
}

TEST(KvEventLog, WhoIsBehindTheWindowNeedsASnapshot) {
  KvEventLog log(/*window=*/4);
  for (std::uint32_t number = 0; number < 4; ++number) {
    log.OnStored(TestHash(number));
  }
  EXPECT_THAT(*log.ReadFrom(0, 100), SizeIs(4));
  log.OnStored(TestHash(4));
  EXPECT_FALSE(log.ReadFrom(0, 100).has_value());
  ASSERT_THAT(*log.ReadFrom(1, 100), SizeIs(4));
  EXPECT_EQ((*log.ReadFrom(1, 100))[0].hash, TestHash(1));
  EXPECT_EQ((*log.ReadFrom(1, 100))[3].hash, TestHash(4));
  EXPECT_THAT(log.TakeSnapshot().hashes, SizeIs(5));
}

TEST(KvEventLog, CallsTheListenerOnceForEachTimeItWasAsked) {
  KvEventLog log;
  int calls = 0;
  log.SetListener([&calls] { ++calls; });
  log.OnStored(TestHash(0));
  EXPECT_EQ(calls, 0);                    // nobody has asked
  EXPECT_FALSE(log.CallOnNextChange(0));  // it is there
  log.OnStored(TestHash(1));
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(log.CallOnNextChange(2));
  log.OnStored(TestHash(2));
  log.OnStored(TestHash(3));
  EXPECT_EQ(calls, 1);
}

// What a router does: rebuilds the set while it changes, falls behind now and then, and starts
// again from a snapshot.
class Follower {
 public:
  explicit Follower(const KvEventLog& log) : log_(log) {}

  void TakeSnapshot() {
    const KvEventLog::Snapshot snapshot = log_.TakeSnapshot();
    held_ = {snapshot.hashes.begin(), snapshot.hashes.end()};
    EXPECT_EQ(held_.size(), snapshot.hashes.size());
    next_ = snapshot.next_event;
    ++snapshots_;
  }
  void Follow() {
    const auto changes = log_.ReadFrom(next_, 100);
    if (!changes.has_value()) {
      TakeSnapshot();
      return;
    }
    for (const KvChange& change : *changes) {
      // Exactly what it is: stored only what is absent, removed only what is there.
      if (change.stored) {
        EXPECT_TRUE(held_.insert(change.hash).second);
      } else {
        EXPECT_EQ(held_.erase(change.hash), 1u);
      }
    }
    next_ += changes->size();
  }

  const std::set<PrefixHash>& held() const { return held_; }
  std::uint64_t next() const { return next_; }
  int snapshots() const { return snapshots_; }

 private:
  const KvEventLog& log_;
  std::set<PrefixHash> held_;
  std::uint64_t next_ = 0;
  int snapshots_ = 0;
};

TEST(KvEventLog, FollowersRebuildTheSetWhileItChanges) {
  constexpr std::uint32_t kSeed = 11;
  constexpr int kChanges = 300'000;
  KvEventLog log(/*window=*/512);
  std::set<PrefixHash> truth;
  std::atomic<bool> done = false;
  std::jthread writer([&] {
    std::mt19937 random(kSeed);
    for (int i = 0; i < kChanges; ++i) {
      const PrefixHash hash = TestHash(random() % 2000);
      if (truth.insert(hash).second) {
        log.OnStored(hash);
      } else {
        truth.erase(hash);
        log.OnRemoved(hash);
      }
    }
    done.store(true);
  });
  Follower quick(log);
  Follower slow(log);
  quick.TakeSnapshot();
  slow.TakeSnapshot();
  for (int round = 0; !done.load(); ++round) {
    quick.Follow();
    if (round % 50 == 0) {
      slow.Follow();
    }
  }
  writer.join();
  for (Follower* follower : {&quick, &slow}) {
    while (follower->next() < log.next_event()) {
      follower->Follow();
    }
    EXPECT_EQ(follower->held(), truth) << "seed " << kSeed;
  }
  EXPECT_EQ(log.next_event(), static_cast<std::uint64_t>(kChanges));
  EXPECT_GT(slow.snapshots(), 1);
}

}  // namespace
}  // namespace baton
