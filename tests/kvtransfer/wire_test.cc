#include "kvtransfer/wire.h"

#include <gtest/gtest.h>

#include <random>

#include "common/byte_io.h"

namespace baton::wire {
namespace {

template <typename Id>
Id Counting(std::uint8_t first) {
  Id id;
  for (std::size_t i = 0; i < id.bytes.size(); ++i) {
    id.bytes[i] = static_cast<std::uint8_t>(first + i);
  }
  return id;
}

Digest CountingDigest(std::uint8_t first) {
  Digest digest{};
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::uint8_t>(first + i);
  }
  return digest;
}

// One of each, and its bytes after the frame's magic and version.
struct Golden {
  Message message;
  std::string hex;
};

std::vector<Golden> Goldens() {
  const auto handoff = Counting<HandoffId>(0x10);
  const std::string handoff_hex = "101112131415161718191a1b1c1d1e1f";
  const std::string greeting_hex =
      "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
      "303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f";
  return {
      {Hello{Counting<InstanceId>(0xa0), CountingDigest(0x30)},
       "0100"
       "30000000" +
           greeting_hex},
      {Welcome{.instance = Counting<InstanceId>(0xa0),
               .layout_fingerprint = CountingDigest(0x30),
               .pool_blocks = 64,
               .messages = 1,
               .doors = {{.kind = TransportKind::kMapped, .description = "ab"}}},
       "0200"
       "42000000" +
           greeting_hex +
           "40000000"
           "0100"
           "01000000"
           "0200"
           "02000000"
           "6162"},
      {Fetch{.handoff = handoff,
             .epoch = 0x0102030405060708,
             .round = 1,
             .credit_bytes = 0x2000000,
             .reads = 1,
             .blocks = {{.first = 3, .count = 250, .first_layer = 0, .layer_count = 30},
                        {.first = 260, .count = 1, .first_layer = 4, .layer_count = 2}}},
       "0300"
       "42000000" +
           handoff_hex +
           "0807060504030201"
           "01000000"
           "0000000200000000"
           "0100"
           "02000000"
           "03000000fa000000"
           "00001e00"
           "0401000001000000"
           "04000200"},
      {Data{.handoff = handoff,
            .epoch = 7,
            .round = 2,
            .sequence = 9,
            .first_layer = 4,
            .layer_count = 2,
            .crc32c = 0xdeadbeef,
            .checksum_follows = 1,
            .blocks = {5, 6}},
       "0400"
       "36000000" +
           handoff_hex +
           "0700000000000000"
           "02000000"
           "09000000"
           "0400"
           "0200"
           "efbeadde"
           "0100"
           "02000000"
           "05000000"
           "06000000"},
      {Complete{.handoff = handoff, .epoch = 7, .round = 1, .messages = 32, .bytes = 94371840},
       "0500"
       "28000000" +
           handoff_hex +
           "0700000000000000"
           "01000000"
           "20000000"
           "0000a00500000000"},
      {Ready{.handoff = handoff,
             .epoch = 7,
             .round = 2,
             .sequence = 9,
             .first_layer = 4,
             .layer_count = 2,
             .crc32c = 0xdeadbeef,
             .blocks = {{.source = 5, .place = 60}}},
       "0b00"
       "34000000" +
           handoff_hex +
           "0700000000000000"
           "02000000"
           "09000000"
           "0400"
           "0200"
           "efbeadde"
           "01000000"
           "05000000"
           "3c000000"},
      {Ack{.handoff = handoff, .epoch = 7, .confirm = 1},
       "0600"
       "1a000000" +
           handoff_hex +
           "0700000000000000"
           "0100"},
      {Released{.handoff = handoff, .epoch = 7},
       "0c00"
       "18000000" +
           handoff_hex + "0700000000000000"},
      {Cancel{.handoff = handoff, .epoch = 7, .code = 4},
       "0700"
       "1a000000" +
           handoff_hex +
           "0700000000000000"
           "0400"},
      {Error{.handoff = handoff, .epoch = 7, .code = 14, .text = "gone"},
       "0800"
       "22000000" +
           handoff_hex +
           "0700000000000000"
           "0e00"
           "04000000"
           "676f6e65"},
      {Ping{.sequence = 3, .renewed = {handoff}},
       "0900"
       "1c000000"
       "0300000000000000"
       "01000000" +
           handoff_hex},
      {Pong{.sequence = 3},
       "0a00"
       "08000000"
       "0300000000000000"},
  };
}

TEST(Wire, BytesAreTheOnesWrittenDown) {
  for (const Golden& golden : Goldens()) {
    EXPECT_EQ(ToHex(Encode(golden.message)),
              "424b5654"
              "0300" +
                  golden.hex);
  }
}

TEST(Wire, DecodesWhatItEncodes) {
  for (const Golden& golden : Goldens()) {
    const absl::StatusOr<Message> decoded = Decode(Encode(golden.message));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(*decoded == golden.message) << golden.hex;
  }
}

// F35: nothing shorter or longer than a message is one.
TEST(Wire, RefusesEveryTruncationAndEveryTail) {
  for (const Golden& golden : Goldens()) {
    const std::string bytes = Encode(golden.message);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_FALSE(Decode(bytes.substr(0, length)).ok()) << golden.hex << " cut at " << length;
    }
    EXPECT_FALSE(Decode(bytes + '\0').ok());
  }
}

// A body cut short whose frame says so: the counts inside are what is wrong.
TEST(Wire, RefusesBodiesShorterThanTheirFields) {
  for (const Golden& golden : Goldens()) {
    const std::string bytes = Encode(golden.message);
    for (std::size_t body = 0; body < bytes.size() - kFrameBytes; ++body) {
      ByteWriter cut;
      cut.PutBytes(bytes.substr(0, 8));
      cut.Put(static_cast<std::uint32_t>(body));
      cut.PutBytes(bytes.substr(kFrameBytes, body));
      EXPECT_FALSE(Decode(cut.bytes()).ok()) << golden.hex << " body of " << body;
    }
  }
}

TEST(Wire, RefusesCountsBeyondTheLimits) {
  const HandoffId handoff = Counting<HandoffId>(1);
  std::string data =
      Encode(Data{.handoff = handoff, .blocks = std::vector<std::uint32_t>(kMaxDataBlocks)});
  EXPECT_TRUE(Decode(data).ok());
  std::string ping = Encode(Ping{.renewed = std::vector<HandoffId>(kMaxRenewals)});
  EXPECT_TRUE(Decode(ping).ok());

  for (std::string bytes : {data, ping}) {
    // The count and the frame's length raised by one element, with the bytes there.
    const std::size_t count_at =
        bytes == data ? kFrameBytes + 16 + 8 + 4 + 4 + 2 + 2 + 4 + 2 : kFrameBytes + 8;
    const std::size_t element = bytes == data ? 4 : 16;
    bytes[count_at] = static_cast<char>(bytes[count_at] + 1);
    bytes.append(element, '\0');
    const auto length = static_cast<std::uint32_t>(bytes.size() - kFrameBytes);
    for (std::size_t i = 0; i < 4; ++i) {
      bytes[8 + i] = static_cast<char>(length >> (8 * i));
    }
    EXPECT_FALSE(Decode(bytes).ok());
    for (std::size_t i = 0; i < 4; ++i) {
      bytes[count_at + i] = '\xff';
    }
    EXPECT_FALSE(Decode(bytes).ok());
  }
}

// F19, F52: the operator learns which versions met.
TEST(Wire, NamesBothVersionsOfAnotherProtocol) {
  std::string bytes = Encode(Pong{});
  bytes[4] = 9;
  const absl::Status refused = Decode(bytes).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("ours 3, theirs 9"), absl::string_view::npos) << refused;
}

TEST(Wire, RefusesUnknownTypesAndOtherProtocols) {
  std::string unknown = Encode(Pong{});
  unknown[6] = 99;
  EXPECT_FALSE(Decode(unknown).ok());
  std::string foreign = Encode(Pong{});
  foreign[0] = 'X';
  EXPECT_FALSE(Decode(foreign).ok());
}

// Any bytes either decode to a message that encodes to the same bytes, or are refused.
TEST(Wire, SurvivesRandomDamage) {
  constexpr unsigned kSeed = 20240601;
  std::mt19937 random(kSeed);
  const std::vector<Golden> goldens = Goldens();
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = Encode(goldens[random() % goldens.size()].message);
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const absl::StatusOr<Message> decoded = Decode(bytes);
    if (decoded.ok()) {
      ASSERT_EQ(Encode(*decoded), bytes) << "seed " << kSeed << " round " << round;
    }
  }
}

TEST(Wire, ErrorCodesThatAreNoneBecomeUnknown) {
  EXPECT_EQ(ToStatus(Error{.code = 14, .text = "x"}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ToStatus(Error{.code = 0}).code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(ToStatus(Error{.code = 999}).code(), absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace baton::wire
