#include "common/byte_io.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(ByteIo, WritesLittleEndian) {
  ByteWriter writer;
  writer.Put(std::uint32_t{0x01020304});
  writer.Put(std::int16_t{-2});
  writer.PutBytes("ab");
  EXPECT_EQ(writer.bytes(), std::string("\x04\x03\x02\x01\xfe\xff"
                                        "ab",
                                        8));
}

TEST(ByteIo, ReadsBackWhatWasWritten) {
  ByteWriter writer;
  writer.Put(std::uint64_t{0xfedcba9876543210});
  writer.Put(std::int8_t{-7});
  ByteReader reader(writer.bytes());

  EXPECT_EQ(reader.Get<std::uint64_t>(), 0xfedcba9876543210);
  EXPECT_EQ(reader.Get<std::int8_t>(), -7);
  EXPECT_EQ(reader.remaining(), 0u);
}

TEST(ByteIo, RefusesToReadPastTheEndAndStaysInPlace) {
  ByteReader reader("abc");
  EXPECT_EQ(reader.Get<std::uint32_t>(), std::nullopt);
  EXPECT_EQ(reader.GetBytes(4), std::nullopt);
  EXPECT_EQ(reader.GetBytes(~std::uint64_t{0}), std::nullopt);
  EXPECT_EQ(reader.GetBytes(3), "abc");
}

}  // namespace
}  // namespace baton
