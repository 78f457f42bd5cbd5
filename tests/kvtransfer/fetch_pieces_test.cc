#include "kvtransfer/fetch_pieces.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

class FetchPiecesTest : public testing::Test {
 protected:
  static constexpr int kLayers = 5;

  FetchPieces Make(int blocks) {
    std::vector<BlockMapping> mappings;
    for (int i = blocks - 1; i >= 0; --i) {  // any order will do
      mappings.push_back(
          {.source_index = i, .destination = BlockId(static_cast<std::uint32_t>(i))});
    }
    pool_.layout = {.layers = kLayers, .layer_bytes = 8};
    return FetchPieces(pool_, std::move(mappings));
  }
  static void Land(FetchPieces& pieces, const PieceRange& range) {
    EXPECT_FALSE(pieces.Check(range).has_value());
    EXPECT_FALSE(pieces.IsHere(range));
    pieces.Begin(range);
    EXPECT_TRUE(pieces.IsHere(range));
    pieces.Finish(range, /*intact=*/true);
  }

  PoolRegion pool_;
};

using Runs = std::vector<wire::BlockRun>;

TEST_F(FetchPiecesTest, AsksForTheLayersThatEachBlockLacks) {
  FetchPieces pieces = Make(4);
  EXPECT_EQ(*pieces.Missing(), (Runs{{0, 4, 0, 5}}));
  Land(pieces, {.layers = {1, 2}, .blocks = {0, 1, 3}});
  EXPECT_EQ(*pieces.Missing(),
            (Runs{{0, 2, 0, 1}, {0, 2, 3, 2}, {2, 1, 0, 5}, {3, 1, 0, 1}, {3, 1, 3, 2}}));
  EXPECT_EQ(pieces.missing(), 4 * kLayers - 6);
  Land(pieces, {.layers = {0, 1}, .blocks = {0}});
  Land(pieces, {.layers = {3, 2}, .blocks = {0}});
  EXPECT_EQ(pieces.WholeBlocks(), std::vector<int>{0});
  EXPECT_EQ(pieces.BlocksNotWhole(), 3);
  EXPECT_EQ(pieces.Missing()->front(), (wire::BlockRun{1, 1, 0, 1}));
}

TEST_F(FetchPiecesTest, WhatArrivedDamagedIsMissing) {
  FetchPieces pieces = Make(1);
  const PieceRange all{.layers = {0, kLayers}, .blocks = {0}};
  pieces.Begin(all);
  pieces.Finish(all, /*intact=*/false);
  EXPECT_FALSE(pieces.IsHere(all));
  EXPECT_EQ(*pieces.Missing(), (Runs{{0, 1, 0, 5}}));
  Land(pieces, all);
  EXPECT_TRUE(pieces.all_landed());
}

// One message must say it all: rather too much is asked for than nothing.
TEST_F(FetchPiecesTest, AsksForWholeBlocksWhereThereIsNotRoomForMore) {
  constexpr int kBlocks = 4000;
  FetchPieces pieces = Make(kBlocks);
  for (std::uint32_t block = 1; block < kBlocks; block += 2) {
    Land(pieces, {.layers = {1, 1}, .blocks = {block}});
  }
  Land(pieces, {.layers = {0, kLayers}, .blocks = {0}});
  const std::optional<Runs> missing = pieces.Missing();
  ASSERT_TRUE(missing.has_value());
  EXPECT_EQ(*missing, (Runs{{1, kBlocks - 1, 0, kLayers}}));
  EXPECT_EQ(pieces.missing(), (kBlocks - 1) * kLayers);
}

}  // namespace
}  // namespace baton
