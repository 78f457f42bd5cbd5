#include "router/tiered_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using Hashes = std::vector<PrefixHash>;

constexpr v1::KvTier kDevice = v1::KV_TIER_DEVICE;
constexpr v1::KvTier kHost = v1::KV_TIER_HOST;
constexpr v1::KvTier kDisk = v1::KV_TIER_DISK;

Hashes RandomHashes(std::mt19937_64& generator, std::size_t count) {
  Hashes hashes(count);
  for (PrefixHash& hash : hashes) {
    for (std::size_t i = 0; i < 2; ++i) {
      const std::uint64_t half = generator();
      std::memcpy(hash.bytes.data() + 8 * i, &half, sizeof(half));
    }
  }
  return hashes;
}

Hashes Part(const Hashes& chain, std::size_t begin, std::size_t end) {
  return {chain.begin() + static_cast<std::ptrdiff_t>(begin),
          chain.begin() + static_cast<std::ptrdiff_t>(end)};
}

// "device 3; host 5 (3 2 0); disk 5 (3 2 0)": the runs of one worker.
std::string Describe(const HeldRuns& held) {
  std::string text;
  for (const HeldRun& run : held) {
    absl::StrAppend(&text, run.blocks, " (", run.in_tier[kDevice], " ", run.in_tier[kHost], " ",
                    run.in_tier[kDisk], ") ");
  }
  return text;
}

std::string Held(const TieredIndex& index, const Hashes& hashes, std::uint32_t worker) {
  TieredMatches matches;
  index.Match(hashes, matches);
  const HeldRuns* held = matches.beyond_device(WorkerSlot(worker));
  return held == nullptr ? absl::StrCat("device ", matches.device.of(WorkerSlot(worker)))
                         : Describe(*held);
}

TEST(TieredIndex, ARunGoesOnInWhicheverTierHasTheNextBlock) {
  std::mt19937_64 generator(1);
  TieredIndex index({});
  const Hashes chain = RandomHashes(generator, 8);
  index.Add(kDevice, WorkerSlot(0), Part(chain, 0, 2));
  index.Add(kHost, WorkerSlot(0), Part(chain, 1, 4));  // the second block is in both
  index.Add(kDisk, WorkerSlot(0), Part(chain, 3, 5));
  index.Add(kDevice, WorkerSlot(0), Part(chain, 5, 6));
  index.Add(kHost, WorkerSlot(0), Part(chain, 7, 8));  // behind a gap
  index.Add(kDisk, WorkerSlot(33), Part(chain, 0, 3));
  index.Add(kDevice, WorkerSlot(2), Part(chain, 0, 3));
  index.Add(kHost, WorkerSlot(3), Part(chain, 1, 8));

  EXPECT_EQ(Held(index, chain, 0), "2 (2 0 0) 4 (2 2 0) 6 (3 2 1) ");
  EXPECT_EQ(Held(index, chain, 33), "0 (0 0 0) 0 (0 0 0) 3 (0 0 3) ");
  EXPECT_EQ(Held(index, chain, 2), "device 3");
  EXPECT_EQ(Held(index, chain, 3), "device 0") << "its first block is nowhere";
  EXPECT_EQ(Held(index, chain, 4000), "device 0");
  EXPECT_EQ(Held(index, {}, 0), "device 0");
  EXPECT_EQ(Held(index, Part(chain, 3, 4), 0), "0 (0 0 0) 1 (0 1 0) 1 (0 1 0) ");
}

// T66: what is evicted from the device and still in host memory is not forgotten.
TEST(TieredIndex, WhatTheDeviceEvictsIsFoundWhereItStillIs) {
  std::mt19937_64 generator(2);
  TieredIndex index({});
  const Hashes chain = RandomHashes(generator, 4);
  index.Add(kDevice, WorkerSlot(5), chain);
  index.Add(kHost, WorkerSlot(5), chain);
  EXPECT_EQ(Held(index, chain, 5), "device 4") << "nothing has to be loaded";
  index.Remove(kDevice, WorkerSlot(5), Part(chain, 2, 4));
  EXPECT_EQ(Held(index, chain, 5), "2 (2 0 0) 4 (2 2 0) 4 (2 2 0) ");
  index.Clear(kDevice, WorkerSlot(5));
  EXPECT_EQ(Held(index, chain, 5), "0 (0 0 0) 4 (0 4 0) 4 (0 4 0) ");
  index.Remove(kHost, WorkerSlot(5), Part(chain, 0, 1));
  EXPECT_EQ(Held(index, chain, 5), "device 0");
}

TEST(TieredIndex, ClearingATierLeavesTheOthers) {
  std::mt19937_64 generator(3);
  TieredIndex index({});
  const Hashes chain = RandomHashes(generator, 4);
  for (const v1::KvTier tier : {kDevice, kHost, kDisk}) {
    index.Add(tier, WorkerSlot(1), chain);
    index.Add(tier, WorkerSlot(2), chain);
  }
  index.Clear(kHost, WorkerSlot(1));
  EXPECT_EQ(index.entries_of(WorkerSlot(1)), 8u);
  EXPECT_EQ(index.stats().tiers[kHost].entries, 4u);
  index.Clear(WorkerSlot(1));
  EXPECT_EQ(index.entries_of(WorkerSlot(1)), 0u);
  EXPECT_EQ(index.entries_of(WorkerSlot(2)), 12u);
  EXPECT_EQ(index.stats().entries, 12u);
}

HeldRuns RunsOf(const PerTier<std::set<PrefixHash>>& held, const Hashes& asked) {
  HeldRuns runs;
  for (std::size_t slowest = 0; slowest < kKvTiers; ++slowest) {
    HeldRun& run = runs[slowest];
    for (const PrefixHash& hash : asked) {
      std::size_t tier = 0;
      while (tier <= slowest && !held[tier].contains(hash)) {
        ++tier;
      }
      if (tier > slowest) {
        break;
      }
      ++run.blocks;
      ++run.in_tier[tier];
    }
  }
  return runs;
}

TEST(TieredIndex, AgreesWithASimpleModel) {
  constexpr std::uint64_t kSeed = 4;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 generator(kSeed);
  const auto draw = [&generator](std::uint64_t below) { return generator() % below; };
  TieredIndex index({.most_entries = 1 << 20});
  std::vector<Hashes> chains;
  for (int i = 0; i < 12; ++i) {
    Hashes chain = i % 3 == 0 ? Hashes() : chains[draw(chains.size())];
    chain.resize(draw(chain.size() + 1));
    const Hashes own = RandomHashes(generator, draw(60) + 1);
    chain.insert(chain.end(), own.begin(), own.end());
    chains.push_back(chain);
  }
  std::map<std::uint32_t, PerTier<std::set<PrefixHash>>> model;
  const auto worker_at = [](std::uint64_t i) { return static_cast<std::uint32_t>(i * 31 % 131); };
  std::size_t beyond = 0;
  std::size_t mixed = 0;
  std::size_t device_alone = 0;
  for (int step = 0; step < 8000; ++step) {
    const std::uint32_t worker = worker_at(draw(20));
    const auto tier = static_cast<v1::KvTier>(draw(kKvTiers));
    const Hashes& chain = chains[draw(chains.size())];
    const std::size_t begin = draw(2) == 0 ? draw(chain.size()) : 0;
    const Hashes part = Part(chain, begin, begin + 1 + draw(chain.size() - begin));
    std::set<PrefixHash>& held = model[worker][tier];
    const std::uint64_t action = draw(1000);
    if (action < 600) {
      index.Add(tier, WorkerSlot(worker), part);
      held.insert(part.begin(), part.end());
    } else if (action < 960) {
      index.Remove(tier, WorkerSlot(worker), part);
      for (const PrefixHash& hash : part) {
        held.erase(hash);
      }
    } else if (action < 980) {
      index.Clear(tier, WorkerSlot(worker));
      held.clear();
    } else if (action < 996) {
      index.Clear(WorkerSlot(worker));
      model[worker] = {};
    } else {
      // No worker has but a device for a while.
      for (auto& [slot, tiers] : model) {
        for (const v1::KvTier slower : {kHost, kDisk}) {
          index.Clear(slower, WorkerSlot(slot));
          tiers[slower].clear();
        }
      }
    }
    const Hashes& asked = chains[draw(chains.size())];
    TieredMatches matches;
    index.Match(asked, matches);
    device_alone += matches.runs.empty() ? 1 : 0;
    for (const auto& [slot, tiers] : model) {
      const HeldRuns expected = RunsOf(tiers, asked);
      const HeldRuns* found = matches.beyond_device(WorkerSlot(slot));
      ASSERT_EQ(matches.device.of(WorkerSlot(slot)), expected[kDevice].blocks) << "step " << step;
      ASSERT_EQ(matches.of(WorkerSlot(slot)), expected[kDisk].blocks) << "step " << step;
      ASSERT_EQ(found != nullptr, expected[kDisk].blocks > expected[kDevice].blocks);
      if (found != nullptr) {
        ASSERT_EQ(Describe(*found), Describe(expected)) << "step " << step << ", worker " << slot;
        ++beyond;
        mixed += expected[kDisk].in_tier[kDisk] > 0 && expected[kDisk].in_tier[kHost] > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(beyond, 1000u);
  EXPECT_GT(mixed, 1000u);
  EXPECT_GT(device_alone, 10u);
  std::size_t entries = 0;
  for (const auto& [slot, tiers] : model) {
    std::size_t of_worker = 0;
    for (const std::set<PrefixHash>& held : tiers) {
      of_worker += held.size();
    }
    EXPECT_EQ(index.entries_of(WorkerSlot(slot)), of_worker);
    entries += of_worker;
  }
  EXPECT_EQ(index.stats().entries, entries);
}

// T65: each tier has its own room, so that full disks leave the devices theirs.
TEST(TieredIndex, IsBoundedTierByTier) {
  std::mt19937_64 generator(5);
  constexpr std::size_t kMost = 20'000;
  TieredIndex index({.most_entries = kMost});
  const std::size_t empty_bytes = index.stats().bytes;
  const Hashes many = RandomHashes(generator, 3 * kMost);
  index.Add(kDisk, WorkerSlot(1), many);
  index.Add(kHost, WorkerSlot(1), Part(many, 0, kMost + 7));
  index.Add(kDevice, WorkerSlot(1), Part(many, 0, kMost / 2));

  const TieredIndex::Stats stats = index.stats();
  EXPECT_EQ(stats.tiers[kDisk].left_out, 2 * kMost);
  EXPECT_EQ(stats.tiers[kHost].left_out, 7u);
  EXPECT_EQ(stats.tiers[kDevice].left_out, 0u);
  EXPECT_EQ(stats.left_out, 2 * kMost + 7);
  EXPECT_EQ(stats.entries, 2 * kMost + kMost / 2);
  EXPECT_EQ(stats.tiers[kDevice].entries, kMost / 2);
  EXPECT_LE(stats.bytes - empty_bytes, 64 * stats.entries);
}

// Workers come, and their slots with them, while blocks are looked up: whoever stays is counted
// right.
TEST(TieredIndex, LookUpsAreExactWhileOthersChangeIt) {
  std::mt19937_64 generator(6);
  TieredIndex index({.most_entries = 1 << 20});
  const Hashes chain = RandomHashes(generator, 12);
  index.Add(kDevice, WorkerSlot(1), Part(chain, 0, 4));
  index.Add(kHost, WorkerSlot(1), Part(chain, 4, 9));
  index.Add(kDisk, WorkerSlot(1), Part(chain, 9, 12));
  std::atomic<bool> stop{false};
  std::jthread others([&] {
    std::mt19937_64 own(7);
    for (std::uint32_t slot = 2; !stop.load(); slot = 2 + (slot + 1) % (kMostWorkers - 2)) {
      const auto tier = static_cast<v1::KvTier>(own() % kKvTiers);
      index.Add(tier, WorkerSlot(slot), chain);
      index.Add(tier, WorkerSlot(slot), RandomHashes(own, 20));
      if (own() % 2 == 0) {
        index.Clear(tier, WorkerSlot(slot));
      }
    }
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < end && !testing::Test::HasFailure()) {
    EXPECT_EQ(Held(index, chain, 1), "4 (4 0 0) 9 (4 5 0) 12 (4 5 3) ");
  }
  stop.store(true);
}

}  // namespace
}  // namespace baton
