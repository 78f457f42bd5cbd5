#include "engine/prefix_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using testing::ElementsAreArray;
using testing::IsEmpty;

// A chain of full blocks as one sequence would register it.
class PrefixCacheTest : public testing::Test {
 protected:
  struct Chain {
    std::vector<TokenId> tokens;
    std::vector<PrefixHash> hashes;
  };
  // Block i of the chain holds 16 times `values[i]`.
  static Chain Of(std::vector<std::uint32_t> values) {
    Chain chain;
    for (const std::uint32_t value : values) {
      chain.tokens.insert(chain.tokens.end(), kBlockTokens, TokenId(value));
    }
    chain.hashes = HashBlocks(RootHash({}), chain.tokens);
    return chain;
  }

  void Register(BlockLease& lease, const Chain& chain) {
    for (int i = 0; i < lease.size(); ++i) {
      cache_.Register(lease, i, chain.hashes, chain.tokens);
    }
    ExpectSound();
  }
  // Leases, registers and lets go. Returns the blocks.
  std::vector<BlockId> Store(const Chain& chain) {
    BlockLease lease = *pool_.Lease(static_cast<int>(chain.hashes.size()));
    Register(lease, chain);
    return {lease.blocks().begin(), lease.blocks().end()};
  }
  std::vector<BlockId> Find(const Chain& chain) { return cache_.Find(chain.hashes, chain.tokens); }
  void ExpectSound() {
    EXPECT_TRUE(pool_.CheckInvariants().ok()) << pool_.CheckInvariants();
    EXPECT_TRUE(cache_.CheckInvariants().ok()) << cache_.CheckInvariants();
  }

  BlockPool pool_{6};
  PrefixCache cache_{pool_};
};

TEST_F(PrefixCacheTest, FindsTheLongestKnownBeginning) {
  const std::vector<BlockId> blocks = Store(Of({1, 2, 3}));
  EXPECT_EQ(pool_.free(), 6);
  EXPECT_EQ(pool_.kept(), 3);
  EXPECT_THAT(Find(Of({1, 2, 3, 4})), ElementsAreArray(blocks));
  EXPECT_THAT(Find(Of({1, 2, 9})), ElementsAreArray(std::span(blocks).first(2)));
  EXPECT_THAT(Find(Of({2, 3})), IsEmpty());
  EXPECT_THAT(Find(Of({})), IsEmpty());
}

TEST_F(PrefixCacheTest, ComparesTheTokensToo) {
  Store(Of({1}));
  Chain forged = Of({2});
  forged.hashes = Of({1}).hashes;  // as if the two collided
  EXPECT_THAT(Find(forged), IsEmpty());
  BlockLease lease = *pool_.Lease(1);
  const BlockId own = lease.blocks()[0];
  Register(lease, forged);
  EXPECT_EQ(lease.blocks()[0], own) << "got a block with other tokens";
}

TEST_F(PrefixCacheTest, AHitIsSharedWithWhoeverStillUsesIt) {
  BlockLease first = *pool_.Lease(2);
  Register(first, Of({1, 2}));
  BlockLease second = pool_.Pin(Find(Of({1, 2})));
  EXPECT_EQ(pool_.free(), 4);
  first.Release();
  EXPECT_EQ(pool_.free(), 4);
  second.Release();
  EXPECT_EQ(pool_.free(), 6);
  ExpectSound();
}

TEST_F(PrefixCacheTest, TheSameContentIsKeptOnce) {
  const std::vector<BlockId> blocks = Store(Of({1, 2}));
  BlockLease again = *pool_.Lease(2);
  Register(again, Of({1, 2}));
  EXPECT_THAT(again.blocks(), ElementsAreArray(blocks));
  EXPECT_EQ(pool_.free(), 4);
  EXPECT_EQ(cache_.size(), 2);
}

TEST_F(PrefixCacheTest, GivesUpTheLeastRecentlyUsedAndOfAChainItsEndFirst) {
  Store(Of({1, 2, 3}));
  Store(Of({7, 8}));
  pool_.Pin(Find(Of({1, 2, 3})));  // used again, and let go
  BlockLease lease = *pool_.Lease(2);
  ExpectSound();
  EXPECT_EQ(Find(Of({7, 8})).size(), 1u) << "the one free block and the end of the older chain";
  lease.Append(*pool_.Lease(1));
  EXPECT_THAT(Find(Of({7, 8})), IsEmpty());
  EXPECT_EQ(Find(Of({1, 2, 3})).size(), 3u);
  lease.Append(*pool_.Lease(2));
  EXPECT_EQ(Find(Of({1, 2, 3})).size(), 1u);
  lease.Append(*pool_.Lease(1));
  EXPECT_THAT(Find(Of({1})), IsEmpty());
  EXPECT_EQ(pool_.free(), 0);
  ExpectSound();
}

TEST_F(PrefixCacheTest, NothingPinnedIsEverGivenUp) {
  Store(Of({1, 2, 3}));
  BlockLease used = pool_.Pin(Find(Of({1, 2})));
  EXPECT_FALSE(pool_.Lease(5).has_value());
  BlockLease rest = *pool_.Lease(4);
  EXPECT_EQ(Find(Of({1, 2, 3})).size(), 2u);
  ExpectSound();
}

// A transfer may pin the end of a chain longer than anybody pins its beginning.
TEST_F(PrefixCacheTest, ABlockWhoseParentIsGivenUpIsNoLongerFound) {
  const std::vector<BlockId> blocks = Store(Of({1, 2}));
  BlockLease end = pool_.Pin(std::span(blocks).subspan(1));
  BlockLease rest = *pool_.Lease(5);
  EXPECT_EQ(cache_.size(), 0);
  ExpectSound();
  rest.Release();
  end.Release();
  EXPECT_EQ(pool_.free(), 6);
  EXPECT_EQ(pool_.kept(), 0);
  ExpectSound();
}

// Two sequences compute the same prompt; the parent of the second's block is given up in between.
TEST_F(PrefixCacheTest, ABlockWithoutItsParentIsNotTaken) {
  const Chain chain = Of({1, 2});
  BlockLease lease = *pool_.Lease(2);
  cache_.Register(lease, 1, chain.hashes, chain.tokens);
  EXPECT_EQ(cache_.size(), 0);
  ExpectSound();
}

}  // namespace
}  // namespace baton
