#include "kvtransfer/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/crc32c.h"

namespace baton {
namespace {

// Short and streamed copies, at every place in a line of the cache.
TEST(CopyWithChecksum, CopiesWhatItTakesTheChecksumOf) {
  std::mt19937 random(3);
  std::vector<std::byte> source(100'000);
  for (std::byte& byte : source) {
    byte = static_cast<std::byte>(random());
  }
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{4160},
        std::size_t{12288}, std::size_t{12289}, std::size_t{70'001}}) {
    for (const std::size_t shift : {0u, 1u, 17u, 63u}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes, " << shift << " into a line");
      std::vector<std::byte> target(bytes + 200, std::byte{0xee});
      const auto start = reinterpret_cast<std::uintptr_t>(target.data());
      const std::size_t at = 64 - start % 64 + shift;

      const std::uint32_t crc = CopyWithChecksum(&target[at], &source[shift * 3], bytes, 77);

      EXPECT_EQ(crc,
                Crc32cPortable({reinterpret_cast<const char*>(&source[shift * 3]), bytes}, 77));
      EXPECT_TRUE(std::equal(&target[at], &target[at] + bytes, &source[shift * 3]));
      EXPECT_EQ(target[at - 1], std::byte{0xee});
      EXPECT_EQ(target[at + bytes], std::byte{0xee});
    }
  }
}

}  // namespace
}  // namespace baton
