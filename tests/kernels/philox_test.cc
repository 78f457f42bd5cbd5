#include "kernels/philox.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

using Words4 = std::array<std::uint32_t, 4>;

// Known answers published with the Random123 library for philox4x32-10.
TEST(Philox, GivesThePublishedWords) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}), (Words4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(UniformDraw, StaysInRangeAndHasTheRightMean) {
  double sum = 0;
  constexpr int kDraws = 10000;
  for (int i = 0; i < kDraws; ++i) {
    const double draw = UniformDraw(12345, static_cast<std::uint64_t>(i));
    ASSERT_GE(draw, 0.0);
    ASSERT_LT(draw, 1.0);
    sum += draw;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.015);  // five standard deviations of 0.0029
}

TEST(UniformDraw, DependsOnAllBitsOfSeedAndPosition) {
  const double base = UniformDraw(1, 1);
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NE(UniformDraw(1 ^ (std::uint64_t{1} << bit), 1), base) << bit;
    EXPECT_NE(UniformDraw(1, 1 ^ (std::uint64_t{1} << bit)), base) << bit;
  }
}

}  // namespace
}  // namespace baton
