#include "router/worker_kv.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton {
namespace {

PrefixHash Hash(std::uint8_t number) {
  PrefixHash hash;
  hash.bytes[0] = number;
  return hash;
}

std::string Bytes(const std::vector<std::uint8_t>& numbers) {
  std::string bytes;
  for (const std::uint8_t number : numbers) {
    const PrefixHash hash = Hash(number);
    bytes.append(hash.bytes.begin(), hash.bytes.end());
  }
  return bytes;
}

class WorkerKvTest : public testing::Test {
 protected:
  using Outcome = WorkerKv::Outcome;

  Outcome Snapshot(FeedId feed, std::uint64_t next, const std::vector<std::uint8_t>& held) {
    return *kv_.TakeSnapshot(feed, Part(next, held, true, true));
  }
  static v1::KvSnapshot Part(std::uint64_t next,
                             const std::vector<std::uint8_t>& held,
                             bool first,
                             bool last) {
    v1::KvSnapshot part;
    part.set_next_event(next);
    part.set_first(first);
    part.set_last(last);
    part.set_hashes(Bytes(held));
    return part;
  }
  Outcome Events(FeedId feed, std::uint64_t first, const std::vector<v1::KvEvent>& list) {
    v1::KvEvents events;
    events.set_first_event(first);
    *events.mutable_events() = {list.begin(), list.end()};
    return *kv_.TakeEvents(feed, events);
  }
  static v1::KvEvent Change(const std::vector<std::uint8_t>& stored,
                            const std::vector<std::uint8_t>& removed = {}) {
    v1::KvEvent event;
    event.set_stored(Bytes(stored));
    event.set_removed(Bytes(removed));
    return event;
  }
  // Of blocks 0 to 9, those that a look-up of that block alone finds.
  std::vector<int> Held() const {
    std::vector<int> held;
    TieredMatches matches;
    for (std::uint8_t i = 0; i < 10; ++i) {
      const PrefixHash hash = Hash(i);
      index_.Match({&hash, 1}, matches);
      if (matches.of(kSlot) == 1) {
        held.push_back(i);
      }
    }
    return held;
  }
  std::size_t EntriesIn(v1::KvTier tier) const { return index_.stats().tiers[tier].entries; }

  static constexpr WorkerSlot kSlot{3};
  static constexpr FeedId kOne{1};
  static constexpr FeedId kTwo{2};

  TieredIndex index_{{.most_entries = 1000}};
  WorkerKv kv_{index_, kSlot};
};

TEST_F(WorkerKvTest, ASnapshotAndTheEventsAfterIt) {
  EXPECT_EQ(Snapshot(kOne, 7, {1, 2}), Outcome::kTaken);
  EXPECT_EQ(Events(kOne, 7, {Change({3}), Change({4}, {1})}), Outcome::kTaken);
  EXPECT_EQ(Events(kOne, 9, {Change({}, {2})}), Outcome::kTaken);
  EXPECT_EQ(Held(), (std::vector<int>{3, 4}));

  v1::KvEvent cleared = Change({8});
  cleared.set_cleared(true);
  EXPECT_EQ(Events(kOne, 10, {cleared}), Outcome::kTaken);
  EXPECT_EQ(Held(), (std::vector<int>{8}));
}

TEST_F(WorkerKvTest, EachTierIsFollowedForItself) {
  v1::KvSnapshot host = Part(7, {1, 2, 3}, false, false);
  host.set_tier(v1::KV_TIER_HOST);
  v1::KvSnapshot disk = Part(7, {4}, false, true);
  disk.set_tier(v1::KV_TIER_DISK);
  EXPECT_EQ(*kv_.TakeSnapshot(kOne, Part(7, {1, 2}, true, false)), Outcome::kTaken);
  EXPECT_EQ(*kv_.TakeSnapshot(kOne, host), Outcome::kTaken);
  EXPECT_EQ(*kv_.TakeSnapshot(kOne, disk), Outcome::kTaken);
  EXPECT_EQ(EntriesIn(v1::KV_TIER_DEVICE), 2u);
  EXPECT_EQ(EntriesIn(v1::KV_TIER_HOST), 3u);
  EXPECT_EQ(EntriesIn(v1::KV_TIER_DISK), 1u);

  // Evicted from the device, and found in the host's memory.
  EXPECT_EQ(Events(kOne, 7, {Change({}, {1, 2})}), Outcome::kTaken);
  EXPECT_EQ(Held(), (std::vector<int>{1, 2, 3, 4}));
  v1::KvEvent moved = Change({5}, {1});
  moved.set_tier(v1::KV_TIER_HOST);
  EXPECT_EQ(Events(kOne, 8, {moved}), Outcome::kTaken);
  EXPECT_EQ(Held(), (std::vector<int>{2, 3, 4, 5}));
  v1::KvEvent cleared = Change({6});
  cleared.set_tier(v1::KV_TIER_HOST);
  cleared.set_cleared(true);
  EXPECT_EQ(Events(kOne, 9, {cleared}), Outcome::kTaken);
  EXPECT_EQ(Held(), (std::vector<int>{4, 6})) << "the disk keeps what it has";

  EXPECT_TRUE(kv_.Drop(kOne));
  EXPECT_EQ(index_.stats().entries, 0u);
}

TEST_F(WorkerKvTest, ASnapshotReplacesAllTiers) {
  v1::KvSnapshot disk = Part(7, {4}, true, true);
  disk.set_tier(v1::KV_TIER_DISK);
  EXPECT_EQ(*kv_.TakeSnapshot(kOne, disk), Outcome::kTaken);
  EXPECT_EQ(Snapshot(kOne, 9, {1}), Outcome::kTaken);
  EXPECT_EQ(Held(), (std::vector<int>{1}));
  EXPECT_EQ(EntriesIn(v1::KV_TIER_DISK), 0u);
}

TEST_F(WorkerKvTest, ATierThatThereIsNoneOfIsRefusedWhole) {
  Snapshot(kOne, 7, {1});
  v1::KvEvents events;
  events.set_first_event(7);
  *events.add_events() = Change({2});
  *events.add_events() = Change({3});
  events.mutable_events(1)->set_tier(static_cast<v1::KvTier>(7));
  EXPECT_EQ(kv_.TakeEvents(kOne, events).status(),
            absl::InvalidArgumentError("events.tier: 7 is no tier"));
  v1::KvSnapshot part = Part(9, {4}, true, true);
  part.set_tier(static_cast<v1::KvTier>(-1));
  EXPECT_EQ(kv_.TakeSnapshot(kOne, part).status(),
            absl::InvalidArgumentError("snapshot.tier: -1 is no tier"));
  EXPECT_EQ(Held(), (std::vector<int>{1}));
  EXPECT_EQ(Events(kOne, 7, {Change({5})}), Outcome::kTaken);
}

TEST_F(WorkerKvTest, ASnapshotInPartsIsWholeWithTheLast) {
  EXPECT_EQ(*kv_.TakeSnapshot(kOne, Part(4, {1}, true, false)), Outcome::kTaken);
  EXPECT_EQ(*kv_.TakeSnapshot(kOne, Part(4, {2}, false, false)), Outcome::kTaken);
  EXPECT_EQ(*kv_.TakeSnapshot(kOne, Part(4, {3}, false, true)), Outcome::kTaken);
  EXPECT_EQ(Events(kOne, 4, {Change({4})}), Outcome::kTaken);
  EXPECT_EQ(Held(), (std::vector<int>{1, 2, 3, 4}));
}

TEST_F(WorkerKvTest, AGapLeavesNothingUntilTheNextSnapshot) {
  Snapshot(kOne, 7, {1, 2});
  EXPECT_EQ(Events(kOne, 8, {Change({3})}), Outcome::kSnapshotWanted);
  EXPECT_EQ(Held(), std::vector<int>());
  EXPECT_EQ(Events(kOne, 9, {Change({4})}), Outcome::kIgnored) << "asked for once";
  EXPECT_EQ(Held(), std::vector<int>());
  EXPECT_EQ(Snapshot(kOne, 10, {1}), Outcome::kTaken);
  EXPECT_EQ(Events(kOne, 10, {Change({5})}), Outcome::kTaken);
  EXPECT_EQ(Held(), (std::vector<int>{1, 5}));
}

TEST_F(WorkerKvTest, EventsInTheMiddleOfASnapshotAreAGap) {
  EXPECT_EQ(*kv_.TakeSnapshot(kOne, Part(4, {1}, true, false)), Outcome::kTaken);
  EXPECT_EQ(Events(kOne, 4, {Change({4})}), Outcome::kSnapshotWanted);
  EXPECT_EQ(Held(), std::vector<int>());
}

TEST_F(WorkerKvTest, OfTwoStreamsTheOneWithTheLatestSnapshotIsFollowed) {
  Snapshot(kOne, 7, {1});
  Snapshot(kTwo, 7, {1});
  EXPECT_EQ(Events(kOne, 7, {Change({2})}), Outcome::kIgnored);
  EXPECT_EQ(Events(kTwo, 7, {Change({2})}), Outcome::kTaken);
  EXPECT_FALSE(kv_.Drop(kOne));
  EXPECT_EQ(Held(), (std::vector<int>{1, 2}));
  EXPECT_TRUE(kv_.Drop(kTwo));
  EXPECT_EQ(Held(), std::vector<int>());
}

TEST_F(WorkerKvTest, PartsOfHashesAreRefusedWhole) {
  Snapshot(kOne, 7, {1});
  v1::KvEvents events;
  events.set_first_event(7);
  events.add_events()->set_stored(Bytes({2}));
  events.add_events()->set_removed("short");
  const auto outcome = kv_.TakeEvents(kOne, events);
  ASSERT_EQ(outcome.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(outcome.status().message()).find("events.removed: 5 bytes"),
            std::string::npos);
  EXPECT_EQ(Held(), (std::vector<int>{1}));
}

}  // namespace
}  // namespace baton
