#include "kernels/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace baton {
namespace {

TEST(Half, EveryValueSurvivesTheWayToFloatAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(ToFloat(value))) {
      EXPECT_TRUE(std::isnan(ToFloat(ToHalf(ToFloat(value)))));
    } else {
      ASSERT_EQ(ToHalf(ToFloat(value)), value) << bits;
    }
  }
}

TEST(Half, HasTheValuesOfTheStandard) {
  EXPECT_EQ(ToFloat(Half{0x3c00}), 1.0f);
  EXPECT_EQ(ToFloat(Half{0xc000}), -2.0f);
  EXPECT_EQ(ToFloat(Half{0x7bff}), 65504.0f);
  EXPECT_EQ(ToFloat(Half{0x0001}), 0x1p-24f);
  EXPECT_EQ(ToFloat(Half{0x0400}), 0x1p-14f);
  EXPECT_EQ(ToFloat(Half{0xfc00}), -std::numeric_limits<float>::infinity());
}

// Whatever lies between two neighbours goes to the nearer one: enough to look at the middle and the
// floats beside it.
TEST(Half, RoundsToNearestAndTiesToEvenBetweenAllNeighbours) {
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const Half below{bits};
    const Half above{static_cast<std::uint16_t>(bits + 1)};
    const float middle = (ToFloat(below) + ToFloat(above)) / 2;  // exact
    ASSERT_EQ(ToHalf(middle), bits % 2 == 0 ? below : above) << bits;
    ASSERT_EQ(ToHalf(std::nextafter(middle, 0.0f)), below) << bits;
    ASSERT_EQ(ToHalf(std::nextafter(middle, 1e6f)), above) << bits;
    ASSERT_EQ(ToHalf(-middle).bits, ToHalf(middle).bits | 0x8000u) << bits;
  }
}

TEST(Half, TheEndsOfTheRange) {
  EXPECT_EQ(ToHalf(std::nextafter(65520.0f, 0.0f)), Half{0x7bff});
  EXPECT_EQ(ToHalf(65520.0f), Half{0x7c00});
  EXPECT_EQ(ToHalf(65536.0f), Half{0x7c00});
  EXPECT_EQ(ToHalf(-std::numeric_limits<float>::max()), Half{0xfc00});
  EXPECT_EQ(ToHalf(-0.0f), Half{0x8000});
  EXPECT_EQ(ToHalf(std::numeric_limits<float>::denorm_min()), Half{0});
  EXPECT_TRUE(std::isnan(ToFloat(ToHalf(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace baton
