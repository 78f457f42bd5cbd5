#include "kernels/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace baton {
namespace {

TEST(BFloat16, EveryValueSurvivesTheWayToFloatAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(ToFloat(value))) {
      EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(ToFloat(value)))));
    } else {
      ASSERT_EQ(ToBFloat16(ToFloat(value)), value) << bits;
    }
  }
}

TEST(BFloat16, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(ToFloat(ToBFloat16(1.0f + 0x1p-9f)), 1.0f);
  EXPECT_EQ(ToFloat(ToBFloat16(1.0f + 0x1p-8f)), 1.0f);  // tie, even below
  EXPECT_EQ(ToFloat(ToBFloat16(1.0f + 0x1p-8f + 0x1p-20f)), 1.0f + 0x1p-7f);
  EXPECT_EQ(ToFloat(ToBFloat16(1.0f + 3 * 0x1p-8f)), 1.0f + 0x1p-6f);  // tie, even above
  EXPECT_EQ(ToFloat(ToBFloat16(-(1.0f + 3 * 0x1p-8f))), -(1.0f + 0x1p-6f));
}

TEST(BFloat16, ANaNWhoseFractionIsInTheLowerHalfStaysOne) {
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(std::bit_cast<float>(0xffffffffu)))));
  EXPECT_TRUE(std::isinf(ToFloat(ToBFloat16(std::numeric_limits<float>::infinity()))));
  EXPECT_TRUE(std::isinf(
      ToFloat(ToBFloat16(std::numeric_limits<float>::max()))));  // above the largest bf16
}

}  // namespace
}  // namespace baton
