#include "engine/block_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace baton {
namespace {

TEST(BlockPool, LeasesAllOrNothing) {
  BlockPool pool(4);
  const auto three = pool.Lease(3);
  ASSERT_TRUE(three.has_value());
  EXPECT_EQ(three->size(), 3);
  EXPECT_FALSE(pool.Lease(2).has_value());
  EXPECT_FALSE(pool.Lease(-1).has_value());
  EXPECT_EQ(pool.free(), 1);
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(BlockPool, ReleasingTheLastLeaseReturnsTheBlock) {
  BlockPool pool(2);
  auto first = pool.Lease(2);
  BlockLease second = first->Share();

  first.reset();
  EXPECT_EQ(pool.free(), 0);
  second.Truncate(1);
  EXPECT_EQ(pool.free(), 1);
  second.Release();
  EXPECT_EQ(pool.free(), 2);
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(BlockPool, MovedFromLeasesHoldNothing) {
  BlockPool pool(4);
  BlockLease a = *pool.Lease(1);
  BlockLease b = std::move(a);
  b.Append(*pool.Lease(2));
  BlockLease c;
  c.Append(std::move(b));
  EXPECT_EQ(c.size(), 3);
  EXPECT_EQ(pool.free(), 1);
  c = BlockLease();
  EXPECT_EQ(pool.free(), 4);
}

TEST(BlockPool, GenerationsAreNeverUsedTwice) {
  BlockPool pool(1);
  const std::uint64_t first = pool.Lease(1)->generation();
  const std::uint64_t second = pool.Lease(1)->generation();
  EXPECT_NE(first, second);
}

// T80: random operations against a map that counts pins.
TEST(BlockPool, AgreesWithATrivialModelOverRandomOperations) {
  constexpr int kBlocks = 24;
  const std::uint32_t seed = 20261129;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  BlockPool pool(kBlocks);
  std::vector<BlockLease> leases;
  for (int step = 0; step < 5000; ++step) {
    const std::uint32_t choice = random() % 5;
    const std::size_t at = leases.empty() ? 0 : random() % leases.size();
    if (choice < 2) {
      const int count = static_cast<int>(random() % 6);
      auto lease = pool.Lease(count);
      if (lease.has_value()) {
        leases.push_back(*std::move(lease));
      }
    } else if (!leases.empty() && choice == 2) {
      leases.push_back(leases[at].Share());
    } else if (!leases.empty() && choice == 3) {
      leases[at].Truncate(static_cast<int>(random() % 4));
    } else if (!leases.empty()) {
      leases.erase(leases.begin() + static_cast<std::ptrdiff_t>(at));
    }
    std::map<BlockId, int> pins;
    for (const BlockLease& lease : leases) {
      for (const BlockId block : lease.blocks()) {
        ++pins[block];
      }
    }
    ASSERT_EQ(pool.free(), kBlocks - static_cast<int>(pins.size())) << "step " << step;
    ASSERT_TRUE(pool.CheckInvariants().ok()) << "step " << step;
  }
}

}  // namespace
}  // namespace baton
