#include "kvtransfer/piece_schedule.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace baton {
namespace {

KvLayout Layout(int layers, std::size_t layer_bytes) {
  return {.layers = layers, .layer_bytes = layer_bytes};
}

TEST(PieceSchedule, TakesWholeBlocksWhenAllIsReady) {
  const KvLayout layout = Layout(30, 100);
  PieceSchedule pieces(layout, 10);
  pieces.MarkReady({.first_block = 0, .block_count = 10, .first_layer = 0, .layer_count = 30});
  EXPECT_FALSE(pieces.has_sendable());
  pieces.Want({{2, 8, 0, 30}});

  const PieceSchedule::Selection selection = pieces.Select(3 * 3000 + 2999);
  EXPECT_EQ(selection.blocks, (std::vector<std::uint32_t>{2, 3, 4}));
  EXPECT_EQ(selection.layers.count, 30);
  EXPECT_EQ(selection.bytes, 9000u);
}

TEST(PieceSchedule, TakesOneLayerOfManyBlocksWhileTheNextIsComputed) {
  const KvLayout layout = Layout(30, 100);
  PieceSchedule pieces(layout, 10);
  pieces.Want({{0, 10, 0, 30}});
  pieces.MarkReady({.first_block = 0, .block_count = 6, .first_layer = 4, .layer_count = 1});

  const PieceSchedule::Selection selection = pieces.Select(1 << 20);
  EXPECT_EQ(selection.blocks.size(), 6u);
  EXPECT_EQ(selection.layers.first, 4);
  EXPECT_EQ(selection.layers.count, 1);
}

TEST(PieceSchedule, SplitsABlockThatIsLargerThanAMessage) {
  const KvLayout layout = Layout(30, 1000);
  PieceSchedule pieces(layout, 1);
  pieces.MarkReady({.first_block = 0, .block_count = 1, .first_layer = 0, .layer_count = 30});
  pieces.Want({{0, 1, 0, 30}});
  EXPECT_EQ(pieces.Select(10500).layers.count, 10);
  // Even a layer that is too large goes, since nothing is smaller.
  EXPECT_EQ(pieces.Select(10).layers.count, 1);
}

// Whatever the order of events, each wanted piece that becomes ready is sent once, in messages
// within the limit.
TEST(PieceSchedule, SendsEachPieceOnceInAnyOrder) {
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const int layers = 1 + static_cast<int>(random() % 70);
    const int blocks = 1 + static_cast<int>(random() % 20);
    const KvLayout layout = Layout(layers, 10);
    PieceSchedule pieces(layout, static_cast<std::size_t>(blocks));
    const auto first = static_cast<std::uint32_t>(random()) % static_cast<std::uint32_t>(blocks);
    pieces.Want({{first, static_cast<std::uint32_t>(blocks) - first, 0,
                  static_cast<std::uint16_t>(layers)}});
    std::set<std::pair<std::uint32_t, int>> sent;
    for (int step = 0; step < 40; ++step) {
      ReadyRange range{.first_block = static_cast<int>(random()) & 0xff,
                       .block_count = 1,
                       .first_layer = 0,
                       .layer_count = 1};
      range.first_block %= blocks;
      range.block_count = static_cast<int>(random() & 0xff) % (blocks - range.first_block) + 1;
      range.first_layer = static_cast<int>(random() & 0xff) % layers;
      range.layer_count = static_cast<int>(random() & 0xff) % (layers - range.first_layer) + 1;
      if (step == 39) {
        range = {.first_block = 0, .block_count = blocks, .first_layer = 0, .layer_count = layers};
      }
      pieces.MarkReady(range);
      while (pieces.has_sendable() && (step == 39 || random() % 3 != 0)) {
        const PieceSchedule::Selection selection = pieces.Select(150);
        ASSERT_FALSE(selection.blocks.empty()) << "seed " << kSeed << " round " << round;
        ASSERT_LE(selection.bytes, 150u);
        for (const std::uint32_t block : selection.blocks) {
          for (int layer = selection.layers.first;
               layer < selection.layers.first + selection.layers.count; ++layer) {
            ASSERT_TRUE(sent.insert({block, layer}).second)
                << "seed " << kSeed << " round " << round;
          }
        }
        pieces.MarkSent(selection);
      }
    }
    EXPECT_TRUE(pieces.all_sent());
    EXPECT_EQ(sent.size(),
              (static_cast<std::size_t>(blocks) - first) * static_cast<std::size_t>(layers));
  }
}

}  // namespace
}  // namespace baton
