#include "common/block_hash.h"

#include <gtest/gtest.h>

#include <numeric>

namespace baton {
namespace {

std::vector<TokenId> CountingTokens(int count) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.emplace_back(static_cast<std::uint32_t>(i));
  }
  return tokens;
}

// B52, T58: golden values from DESIGN.md; the same in every process, so a per-process seed would
// fail here.
TEST(BlockHash, MatchesGoldenVectors) {
  const PrefixHash root = RootHash({});

  const std::vector<PrefixHash> hashes = HashBlocks(root, CountingTokens(32));

  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(hashes[0].ToString(), "4d3bcad0d6ad0a07c82488c623c37585");
  EXPECT_EQ(hashes[1].ToString(), "a011db29267affa99175e520b8f6ba99");
}

TEST(BlockHash, OnlyFullBlocksHaveAHash) {
  const PrefixHash root = RootHash({});
  EXPECT_EQ(HashBlocks(root, CountingTokens(0)).size(), 0u);
  EXPECT_EQ(HashBlocks(root, CountingTokens(15)).size(), 0u);
  EXPECT_EQ(HashBlocks(root, CountingTokens(16)).size(), 1u);
  EXPECT_EQ(HashBlocks(root, CountingTokens(47)).size(), 2u);
}

TEST(BlockHash, EveryFieldOfTheScopeSeparates) {
  HashScope model;
  model.model_fingerprint[3] = 1;
  HashScope tokenizer;
  tokenizer.tokenizer_fingerprint[3] = 1;
  const std::vector<PrefixHash> roots = {RootHash({}), RootHash(model), RootHash(tokenizer),
                                         RootHash({.cache_salt = "a"}), RootHash({.zone = "a"})};
  for (std::size_t i = 0; i < roots.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_NE(roots[i], roots[j]) << i << " and " << j;
    }
  }
}

}  // namespace
}  // namespace baton
