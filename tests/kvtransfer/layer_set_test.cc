#include "kvtransfer/layer_set.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(LayerSet, HoldsRangesAcrossWords) {
  const LayerSet set({60, 10});
  EXPECT_EQ(set.Count(), 10);
  EXPECT_TRUE(set.Contains(LayerSet({63, 2})));
  EXPECT_FALSE(set.Contains(LayerSet({59, 2})));
  EXPECT_TRUE(set.Intersects(LayerSet({69, 100})));
  EXPECT_FALSE(set.Intersects(LayerSet({70, 100})));
  EXPECT_TRUE(LayerSet().empty());
  EXPECT_TRUE(set.Contains(LayerSet()));
}

TEST(LayerSet, FindsTheLowestRun) {
  LayerSet set({100, 3});
  set |= LayerSet({62, 4});
  EXPECT_EQ(set.FirstRun().first, 62);
  EXPECT_EQ(set.FirstRun().count, 4);
  set -= LayerSet({62, 4});
  EXPECT_EQ(set.FirstRun().first, 100);
  EXPECT_EQ(set.FirstRun().count, 3);
  EXPECT_EQ(LayerSet().FirstRun().count, 0);
  EXPECT_EQ(LayerSet({0, kMaxLayers}).FirstRun().count, kMaxLayers);
}

TEST(LayerSet, SubtractsAndIntersects) {
  const LayerSet a({0, 10});
  const LayerSet b({5, 10});
  EXPECT_EQ(a - b, LayerSet({0, 5}));
  EXPECT_EQ(a & b, LayerSet({5, 5}));
}

}  // namespace
}  // namespace baton
