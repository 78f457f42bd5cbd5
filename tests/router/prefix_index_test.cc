#include "router/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

namespace baton {
namespace {

using Hashes = std::vector<PrefixHash>;

PrefixHash RandomHash(std::mt19937_64& generator) {
  PrefixHash hash;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::uint64_t half = generator();
    std::memcpy(hash.bytes.data() + 8 * i, &half, sizeof(half));
  }
  return hash;
}

Hashes RandomHashes(std::mt19937_64& generator, std::size_t count) {
  Hashes hashes;
  for (std::size_t i = 0; i < count; ++i) {
    hashes.push_back(RandomHash(generator));
  }
  return hashes;
}

std::uint32_t Matched(const PrefixIndex& index, const Hashes& hashes, std::uint32_t worker) {
  PrefixMatches matches;
  index.Match(hashes, matches);
  return matches.of(WorkerSlot(worker));
}

TEST(PrefixIndex, CountsLeadingBlocksWithoutAGap) {
  std::mt19937_64 generator(1);
  PrefixIndex index({});
  const Hashes chain = RandomHashes(generator, 4);
  index.Add(WorkerSlot(0), chain);
  index.Add(WorkerSlot(1), Hashes{chain[0], chain[1], chain[3]});
  index.Add(WorkerSlot(2), Hashes{chain[1], chain[2], chain[3]});
  index.Add(WorkerSlot(5), Hashes{chain[0]});

  PrefixMatches matches;
  index.Match(chain, matches);
  EXPECT_THAT(matches.blocks, testing::ElementsAre(4, 2, 0, 0, 0, 1));
  EXPECT_EQ(matches.of(WorkerSlot(4095)), 0u);
  index.Match(Hashes{chain[0], chain[2]}, matches);
  EXPECT_THAT(matches.blocks, testing::ElementsAre(2, 1, 0, 0, 0, 1));
  index.Match({}, matches);
  EXPECT_THAT(matches.blocks, testing::Each(0));
  index.Match(RandomHashes(generator, 3), matches);
  EXPECT_THAT(matches.blocks, testing::Each(0));
}

TEST(PrefixIndex, WhatIsThereTwiceCountsOnce) {
  std::mt19937_64 generator(2);
  PrefixIndex index({.most_entries = 2});
  const Hashes chain = RandomHashes(generator, 2);
  index.Add(WorkerSlot(3), chain);
  index.Add(WorkerSlot(3), chain);
  EXPECT_EQ(index.stats().entries, 2u);
  EXPECT_EQ(index.stats().left_out, 0u);
  index.Remove(WorkerSlot(4), chain);
  EXPECT_EQ(index.entries_of(WorkerSlot(3)), 2u);
  EXPECT_EQ(index.entries_of(WorkerSlot(4)), 0u);
  index.Remove(WorkerSlot(3), chain);
  index.Remove(WorkerSlot(3), chain);
  EXPECT_EQ(index.stats().entries, 0u);
  EXPECT_EQ(index.stats().blocks, 0u);
}

// A block passes through every way to hold a set of workers, up and down.
TEST(PrefixIndex, ABlockMayBeHeldByAnyNumberOfWorkers) {
  std::mt19937_64 generator(3);
  PrefixIndex index({});
  const Hashes block = RandomHashes(generator, 1);
  std::vector<std::uint32_t> order(kMostWorkers);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), generator);
  const auto check = [&](std::size_t holders) {
    PrefixMatches matches;
    index.Match(block, matches);
    for (std::size_t i = 0; i < order.size(); ++i) {
      ASSERT_EQ(matches.of(WorkerSlot(order[i])), i < holders ? 1u : 0u) << holders << " hold it";
    }
    ASSERT_EQ(index.stats().entries, holders);
    ASSERT_EQ(index.stats().blocks, holders > 0 ? 1u : 0u);
  };
  for (std::size_t count = 0; count < kMostWorkers; ++count) {
    if (count < 64 || count % 97 == 0) {
      ASSERT_NO_FATAL_FAILURE(check(count));
    }
    index.Add(WorkerSlot(order[count]), block);
  }
  check(kMostWorkers);
  const std::size_t bytes = index.stats().bytes;
  for (std::size_t count = kMostWorkers; count > 0; --count) {
    index.Remove(WorkerSlot(order[count - 1]), block);
    if (count < 64 || count % 97 == 0) {
      ASSERT_NO_FATAL_FAILURE(check(count - 1));
    }
  }
  // What was given up is used again.
  for (int round = 0; round < 100; ++round) {
    for (const std::uint32_t worker : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}) {
      index.Add(WorkerSlot(worker), block);
    }
    for (const std::uint32_t worker : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}) {
      index.Remove(WorkerSlot(worker), block);
    }
  }
  EXPECT_EQ(index.stats().bytes, bytes);
}

TEST(PrefixIndex, AgreesWithASimpleModel) {
  constexpr std::uint64_t kSeed = 4;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 generator(kSeed);
  const auto draw = [&generator](std::uint64_t below) { return generator() % below; };
  PrefixIndex index({.most_entries = 1 << 20});
  std::vector<Hashes> chains;
  for (int i = 0; i < 60; ++i) {
    // Some begin like an earlier one.
    Hashes chain;
    if (i % 3 != 0) {
      const Hashes& other = chains[draw(chains.size())];
      chain.assign(other.begin(),
                   other.begin() + static_cast<std::ptrdiff_t>(draw(other.size()) + 1));
    }
    const Hashes own = RandomHashes(generator, draw(100) + 1);
    chain.insert(chain.end(), own.begin(), own.end());
    chains.push_back(chain);
  }
  std::map<std::uint32_t, std::set<PrefixHash>> model;
  const auto worker_at = [](std::uint64_t i) {
    return static_cast<std::uint32_t>(i * 41 % kMostWorkers);
  };
  for (int step = 0; step < 6000; ++step) {
    const std::uint32_t worker = worker_at(draw(100));
    const Hashes& chain = chains[draw(chains.size())];
    const std::size_t begin = draw(4) == 0 ? draw(chain.size()) : 0;
    const Hashes part(chain.begin() + static_cast<std::ptrdiff_t>(begin), chain.end());
    std::set<PrefixHash>& held = model[worker];
    const std::uint64_t action = draw(100);
    if (action < 55) {
      index.Add(WorkerSlot(worker), part);
      held.insert(part.begin(), part.end());
    } else if (action < 98) {
      index.Remove(WorkerSlot(worker), part);
      for (const PrefixHash& hash : part) {
        held.erase(hash);
      }
    } else {
      const std::vector<WorkerSlot> two = {WorkerSlot(worker), WorkerSlot(worker_at(draw(100)))};
      index.Clear(two);
      model[two[0].value()].clear();
      model[two[1].value()].clear();
    }
    const Hashes& asked = chains[draw(chains.size())];
    PrefixMatches matches;
    index.Match(asked, matches);
    for (const auto& [slot, blocks] : model) {
      std::uint32_t expected = 0;
      while (expected < asked.size() && blocks.contains(asked[expected])) {
        ++expected;
      }
      ASSERT_EQ(matches.of(WorkerSlot(slot)), expected) << "step " << step << ", worker " << slot;
    }
  }
  std::set<PrefixHash> blocks;
  std::size_t entries = 0;
  for (const auto& [slot, held] : model) {
    blocks.insert(held.begin(), held.end());
    entries += held.size();
    EXPECT_EQ(index.entries_of(WorkerSlot(slot)), held.size());
  }
  EXPECT_EQ(index.stats().entries, entries);
  EXPECT_EQ(index.stats().blocks, blocks.size());
}

TEST(PrefixIndex, GrowsAndTakesAtMost64BytesAnEntry) {
  std::mt19937_64 generator(5);
  PrefixIndex index({});
  constexpr std::uint32_t kWorkers = 1000;
  std::vector<Hashes> chains;
  std::size_t entries = 0;
  double most_bytes = 0;
  for (std::uint32_t i = 0; i < 4000; ++i) {
    chains.push_back(RandomHashes(generator, 256));
    index.Add(WorkerSlot(i % kWorkers), chains.back());
    entries += 256;
    if (entries >= 100'000) {
      most_bytes = std::max(
          most_bytes, static_cast<double>(index.stats().bytes) / static_cast<double>(entries));
    }
  }
  EXPECT_EQ(index.stats().entries, entries);
  EXPECT_LE(most_bytes, 64);
  for (std::uint32_t i = 0; i < chains.size(); ++i) {
    ASSERT_EQ(Matched(index, chains[i], i % kWorkers), 256u) << i;
    ASSERT_EQ(Matched(index, chains[i], (i + 1) % kWorkers), 0u) << i;
  }
  std::vector<WorkerSlot> all;
  for (std::uint32_t i = 0; i < kWorkers; ++i) {
    all.push_back(WorkerSlot(i));
  }
  index.Clear(all);
  EXPECT_EQ(index.stats().entries, 0u);
  EXPECT_EQ(index.stats().blocks, 0u);
  EXPECT_EQ(Matched(index, chains[7], 7), 0u);
}

// T65: what workers hold may be more than the index can; what they evicted is not found.
TEST(PrefixIndex, IsBounded) {
  std::mt19937_64 generator(6);
  constexpr std::size_t kMost = 20'000;
  PrefixIndex index({.most_entries = kMost});
  Hashes last;
  for (int i = 0; i < 1000; ++i) {
    last = RandomHashes(generator, 1000);
    index.Add(WorkerSlot(static_cast<std::uint32_t>(i % 10)), last);
    ASSERT_LE(index.stats().entries, kMost);
    if (i % 2 == 0) {
      index.Remove(WorkerSlot(static_cast<std::uint32_t>(i % 10)), last);
      ASSERT_EQ(Matched(index, last, static_cast<std::uint32_t>(i % 10)), 0u);
    }
  }
  const PrefixIndex::Stats stats = index.stats();
  EXPECT_EQ(stats.entries, kMost);
  EXPECT_GE(stats.left_out, 400'000u);
  EXPECT_LE(stats.bytes, 64 * kMost + (1 << 20));
  EXPECT_EQ(Matched(index, last, 9), 0u) << "it came when there was no room";
  for (std::uint32_t worker = 0; worker < 10; ++worker) {
    index.Clear(WorkerSlot(worker));
  }
  index.Add(WorkerSlot(9), last);
  EXPECT_EQ(Matched(index, last, 9), 1000u);
}

// Hashes that share a place cannot be told apart by growing.
TEST(PrefixIndex, ManyHashesInOnePlaceAreLeftOut) {
  PrefixIndex index({.most_entries = 1 << 20});
  Hashes alike;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const std::uint64_t high = i;
    const std::uint64_t low = std::rotl(high, 32);  // their mixture is 0
    PrefixHash hash;
    std::memcpy(hash.bytes.data(), &low, 8);
    std::memcpy(hash.bytes.data() + 8, &high, 8);
    alike.push_back(hash);
  }
  index.Add(WorkerSlot(1), alike);
  EXPECT_GT(index.stats().entries, 0u);
  EXPECT_EQ(index.stats().entries + index.stats().left_out, alike.size());
  EXPECT_EQ(Matched(index, alike, 1), index.stats().entries);
  EXPECT_LE(index.stats().bytes, std::size_t{8} << 20);
}

// Look-ups while everything around them changes: what is there throughout is always found, and what
// is never there never is, whoever gets the memory of others. Chains share their holders' slots, so
// that a set read through a stale word names a worker that never held the chain.
TEST(PrefixIndex, LookUpsAreExactWhileOthersChangeIt) {
  constexpr std::size_t kChains = 16;
  constexpr std::uint32_t kPerChain = 40;  // workers that come and go, enough for a bitmap
  std::mt19937_64 generator(7);
  PrefixIndex index({.most_entries = 1 << 20});
  std::vector<Hashes> chains;
  for (std::size_t c = 0; c < kChains; ++c) {
    chains.push_back(RandomHashes(generator, 6));
    index.Add(WorkerSlot(static_cast<std::uint32_t>(c)), chains[c]);  // the one that stays
  }
  std::atomic<bool> stop{false};
  // Two threads let workers of their own come and go, at all chains; each also fills and empties a
  // part of the table, so that it splits and its vacancies get other keys.
  const auto change = [&](std::uint32_t half) {
    std::mt19937_64 own(100 + half);
    while (!stop.load()) {
      const std::size_t c = own() % kChains;
      const std::uint32_t first = static_cast<std::uint32_t>(kChains + (2 * c + half) * kPerChain);
      const std::uint32_t count = static_cast<std::uint32_t>(own() % kPerChain);
      for (std::uint32_t i = 0; i < count; ++i) {
        index.Add(WorkerSlot(first + i), chains[c]);
      }
      const Hashes others = RandomHashes(own, 200);
      index.Add(WorkerSlot(first), others);
      for (std::uint32_t i = 0; i < count; ++i) {
        index.Remove(WorkerSlot(first + i), chains[c]);
      }
      if (own() % 64 != 0) {
        index.Remove(WorkerSlot(first), others);
      }
    }
  };
  std::vector<std::jthread> writers;
  writers.emplace_back(change, 0);
  writers.emplace_back(change, 1);

  PrefixMatches matches;
  std::uint64_t seen_others = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  std::size_t wrong = 0;
  for (std::size_t round = 0; wrong == 0 && std::chrono::steady_clock::now() < end; ++round) {
    const std::size_t c = round % kChains;
    index.Match(chains[c], matches);
    for (std::uint32_t slot = 0; slot < matches.blocks.size(); ++slot) {
      const bool comes_and_goes = slot >= kChains && (slot - kChains) / kPerChain / 2 == c;
      if (comes_and_goes) {
        seen_others += matches.blocks[slot];
      } else if (matches.blocks[slot] != (slot == c ? chains[c].size() : 0)) {
        ++wrong;
        ADD_FAILURE() << "round " << round << ", chain " << c << ", slot " << slot << ": "
                      << matches.blocks[slot];
      }
    }
  }
  stop.store(true);
  writers.clear();
  EXPECT_GT(seen_others, 0u) << "nobody came while we looked";
}

// A block stays found while the part of the table that holds it is split in two.
TEST(PrefixIndex, LookUpsAreExactWhileItGrows) {
  std::mt19937_64 generator(8);
  const Hashes chain = RandomHashes(generator, 64);
  const Hashes others = RandomHashes(generator, 40'000);
  const Hashes unknown = RandomHashes(generator, 8);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (int round = 0; round < 60 && std::chrono::steady_clock::now() < end; ++round) {
    PrefixIndex index({.most_entries = 1 << 20});
    index.Add(WorkerSlot(1), chain);
    std::atomic<bool> done{false};
    std::jthread grow([&] {
      index.Add(WorkerSlot(2), others);
      done.store(true);
    });
    while (!done.load()) {
      ASSERT_EQ(Matched(index, chain, 1), chain.size()) << "round " << round;
      ASSERT_EQ(Matched(index, unknown, 2), 0u);
    }
  }
}

}  // namespace
}  // namespace baton
