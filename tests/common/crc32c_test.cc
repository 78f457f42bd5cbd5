#include "common/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace baton {
namespace {

// RFC 3720 appendix B.4.
TEST(Crc32c, MatchesPublishedVectors) {
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32c, InstructionAndPortableFormAgreeAtEveryLengthAndSplit) {
  std::mt19937 random(7);
  std::string bytes(50000, '\0');
  for (char& c : bytes) {
    c = static_cast<char>(random());
  }
  for (const std::size_t length : {1u, 7u, 8u, 9u, 63u, 255u, 256u, 257u, 511u, 512u, 767u, 12287u,
                                   12288u, 12289u, 24576u, 50000u}) {
    const std::string_view part = std::string_view(bytes).substr(0, length);
    EXPECT_EQ(Crc32c(part), Crc32cPortable(part)) << length;
    if (__builtin_cpu_supports("sse4.2") != 0) {
      EXPECT_EQ(Crc32cSse42(part, 5), Crc32cPortable(part, 5)) << length;
    }
    EXPECT_EQ(Crc32c(part.substr(length / 3), Crc32c(part.substr(0, length / 3))), Crc32c(part))
        << length;
  }
}

}  // namespace
}  // namespace baton
