#include <gtest/gtest.h>

#include <fstream>

#include "common/crc32c.h"
#include "tests/kvtransfer/fault_fixture.h"
#include "tests/kvtransfer/raw_peer.h"

namespace baton {
namespace {

using faulty::Fault;
using faulty::FaultAction;

constexpr auto kMapped = static_cast<std::uint16_t>(TransportKind::kMapped);

// What goes wrong with reads of a mapped pool.
class ReadFaults : public Faults {
 protected:
  void Adjust(TransferOptions& options) override { options.transport.forced = forced_; }

  std::optional<TransportKind> forced_;
};

TEST_P(ReadFaults, ADamagedReadIsFoundAndReadAgain) {
  for (int first = 0; first < 4; ++first) {
    const Outcome outcome =
        HandOver({{.action = FaultAction::kFlip, .type = {}, .first = first, .of_reads = true}},
                 /*on_prefill_side=*/false);
    EXPECT_EQ(outcome.injected, 1);
    EXPECT_EQ(outcome.checksums_failed, 1u);
    EXPECT_EQ(outcome.fetch.landed, 1) << outcome.fetch.why;
    EXPECT_EQ(outcome.fetch.stats.transport, "mapped");
    EXPECT_EQ(outcome.fetch.stats.moves, 0);
  }
}

// Under auto the handoff moves on, and what has landed is not fetched again.
TEST_P(ReadFaults, ReadsThatGoOnFailingMoveTheHandoffToMessages) {
  for (const FaultAction action : {FaultAction::kFlip, FaultAction::kDrop}) {
    const Outcome outcome = HandOver(
        {{.action = action, .type = {}, .first = 2, .count = 1000, .of_reads = true}}, false);
    EXPECT_GE(outcome.injected, 1);
    EXPECT_EQ(outcome.fetch.landed, 1) << outcome.fetch.why;
    EXPECT_EQ(outcome.fetch.stats.moves, 1);
    EXPECT_EQ(outcome.fetch.stats.transport, GetParam() == "mapped" ? "inproc" : "tcp");
    // Two reads of three blocks each had landed.
    const std::size_t whole = kFaultBlocks * SmallLayout().block_bytes();
    EXPECT_EQ(outcome.fetch.stats.bytes, whole);
    EXPECT_EQ(outcome.offer.state, PrefillHandoffState::kReleased);
  }
}

// A forced transport is not replaced by another.
TEST_P(ReadFaults, ForcedReadsThatFailEndTheHandoff) {
  forced_ = TransportKind::kMapped;
  const Outcome outcome = HandOver(
      {{.action = FaultAction::kDrop, .type = {}, .first = 2, .count = 1000, .of_reads = true}},
      false);
  EXPECT_EQ(outcome.fetch.failed, 1);
  EXPECT_EQ(outcome.fetch.why.code(), absl::StatusCode::kUnavailable) << outcome.fetch.why;
  EXPECT_LE(outcome.fetch.whole_blocks.size(), 6u);
}

TEST_P(ReadFaults, AConnectionThatBreaksUnderAReadEndsTheHandoff) {
  const Outcome outcome =
      HandOver({{.action = FaultAction::kKill, .type = {}, .first = 1, .of_reads = true}}, false);
  EXPECT_EQ(outcome.fetch.failed, 1);
  EXPECT_EQ(outcome.fetch.why.code(), absl::StatusCode::kUnavailable) << outcome.fetch.why;
}

// The peer's word that the lease held is waited for, and asked for again when it is lost.
TEST_P(ReadFaults, ALostConfirmationIsAskedForAgain) {
  for (const bool on_prefill_side : {true, false}) {
    const Outcome outcome = HandOver(
        {{.action = FaultAction::kDrop,
          .type = on_prefill_side ? wire::MessageType::kReleased : wire::MessageType::kAck}},
        on_prefill_side);
    EXPECT_EQ(outcome.injected, 1);
    EXPECT_EQ(outcome.fetch.landed, 1) << outcome.fetch.why;
    EXPECT_EQ(outcome.offer.state, PrefillHandoffState::kReleased);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         ReadFaults,
                         testing::Values("mapped", "mapped_ucx"),
                         kTransportName);

int MappingsOf(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find(name) != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(MappedTransport, APoolIsMappedOnceForEachPeerAndUnmappedWithTheConnection) {
  const TestTransports transports;
  const int before = MappingsOf("baton-test-pool");
  {
    Node prefill(transports.Make("mapped"));
    Node decode(transports.Make("mapped"));
    for (int i = 0; i < 3; ++i) {
      const HandoffId id = HandoffId::Make();
      ASSERT_TRUE(prefill.Offer(id, decode, Scattered(4, 64, 7)).ok());
      prefill.ReadyAll(id, 4);
      ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, Scattered(4, 64, 11))).ok());
      ASSERT_TRUE(decode.fetches.WaitEnd(id));
      EXPECT_EQ(decode.fetches.Get(id).stats.transport, "mapped");
    }
    EXPECT_EQ(MappingsOf("baton-test-pool"), before + 3);  // both pools, and one seen twice

    prefill.service->Stop(std::chrono::seconds(1));
    // T32
    EXPECT_TRUE(WaitUntil([&] { return decode.service->stats().connections == 0; }));
    EXPECT_EQ(MappingsOf("baton-test-pool"), before + 2);
  }
  EXPECT_EQ(MappingsOf("baton-test-pool"), before);
}

// Both sides must allow what is used; the pairing is refused with both named.
TEST(MappedTransport, APairingWithoutACommonTransportIsRefused) {
  const TestTransports transports;
  const auto forced = [](TransportKind kind) {
    return [kind](TransferOptions& options) { options.transport.forced = kind; };
  };
  const auto refusal = [&](Node& prefill, Node& decode) {
    const HandoffId id = HandoffId::Make();
    EXPECT_TRUE(prefill.Offer(id, decode, Scattered(4, 64, 7)).ok());
    EXPECT_TRUE(decode.Fetch(id, prefill, MapFrom(0, Scattered(4, 64, 11))).ok());
    EXPECT_TRUE(decode.fetches.WaitEnd(id));
    return decode.fetches.Get(id).why;
  };
  Node maps(transports.Make("mapped"), forced(TransportKind::kMapped));
  Node messages(transports.Make("mapped"), forced(TransportKind::kTcp));
  Node unmapped(transports.Make("inproc"));

  for (const auto& [prefill, decode] : {std::pair{&maps, &messages}, {&messages, &maps}}) {
    const absl::Status why = refusal(*prefill, *decode);
    EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition) << why;
    EXPECT_NE(why.message().find("transport: only"), absl::string_view::npos) << why;
  }
  EXPECT_EQ(refusal(unmapped, maps).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refusal(maps, unmapped).code(), absl::StatusCode::kFailedPrecondition);
}

// A door is a peer's word.
class Door : public testing::Test {
 protected:
  static constexpr std::size_t kPoolBytes = 10000;

  static absl::Status Open(const std::string& door, std::uint64_t pool_bytes = kPoolBytes) {
    return mapped::MappedPool::Open(door, pool_bytes).status();
  }
  static void ExpectRefused(const std::string& door, const char* why) {
    const absl::Status status = Open(door);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(why), absl::string_view::npos) << status;
  }
  static std::string With(std::string door, std::size_t at, char flip) {
    door[at] = static_cast<char>(door[at] ^ flip);
    return door;
  }
  static constexpr std::size_t kNamespace = 36;
  static constexpr std::size_t kFd = 36 + 8 + 4;
  static constexpr std::size_t kFileBytes = kFd + 4;
  static constexpr std::size_t kCookie = kFileBytes + 8;
};

TEST_F(Door, OpensThePoolOfItsOwnerAndNothingElse) {
  const TestPoolFile pool(kPoolBytes);
  const std::string door = mapped::MakeDoor(pool.file());
  ASSERT_EQ(door.size(), kCookie + mapped::kCookieBytes);
  EXPECT_TRUE(Open(door).ok()) << Open(door);
  pool.file().base[77] = std::byte{0x42};
  EXPECT_EQ(mapped::MappedPool::Open(door, kPoolBytes)->base()[77], std::byte{0x42});

  ExpectRefused(With(door, 0, 1), "another host");
  ExpectRefused(With(door, kNamespace, 1), "another pid namespace");
  ExpectRefused(With(door, kFileBytes, 1), "size");
  ExpectRefused(With(door, kCookie, 1), "not the peer's pool");
  ExpectRefused(With(door, kFd + 3, 0x40), "No such file");
  for (std::size_t length = 0; length < door.size(); ++length) {
    ExpectRefused(door.substr(0, length), "not known here");
  }
  ExpectRefused(door + "x", "not known here");
  // A pool said to be larger than its file, by little and by much.
  for (const std::uint64_t bytes :
       {pool.file().file_bytes - 15, pool.file().file_bytes, ~std::uint64_t{0}}) {
    EXPECT_EQ(Open(door, bytes).code(), absl::StatusCode::kFailedPrecondition);
  }
  // The owner has a new cookie: what was said before is void.
  mapped::MakeDoor(pool.file());
  ExpectRefused(door, "not the peer's pool");
}

// A file that could shrink would end the reader with SIGBUS; a pipe would hold it up.
TEST_F(Door, RefusesFilesThatAreNoSealedMemory) {
  const TestPoolFile pool(kPoolBytes);
  const std::string door = mapped::MakeDoor(pool.file());
  const UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), static_cast<off_t>(pool.file().file_bytes)), 0);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  const auto naming = [&](int fd) {
    std::string other = door;
    for (std::size_t i = 0; i < 4; ++i) {
      other[kFd + i] = static_cast<char>(static_cast<std::uint32_t>(fd) >> (8 * i));
    }
    return other;
  };
  ExpectRefused(naming(unsealed.get()), "may shrink");
  ExpectRefused(naming(reading.get()), "no memory file");
}

// A prefill side that announces what no honest one would, to a decode side that has mapped its
// pool.
class HostileReady : public testing::Test {
 protected:
  static constexpr int kBlocks = 4;

  void Begin() {
    file_ = std::make_unique<TestPoolFile>(64 * SmallLayout().block_bytes());
    peer_ = std::make_unique<RawPeer>(transports_.Messages("inproc"));
    node_ = std::make_unique<Node>(transports_.Make("mapped"));
    id_ = HandoffId::Make();
    ASSERT_TRUE(node_->service
                    ->Fetch({.id = id_,
                             .epoch = 5,
                             .address = peer_->transport->address(),
                             .peer = peer_->instance,
                             .blocks = MapFrom(2, Scattered(2 + kBlocks, 64, 11)),
                             .pin = std::make_unique<CountingPin>(node_->pins),
                             .deadline = Clock::System().Now() + kTestPatience,
                             .sink = &node_->fetches})
                    .ok());
    ASSERT_TRUE(peer_->Until([&] { return peer_->Last<wire::Hello>() != nullptr; }));
    connection_ = peer_->accepted[0];
    ASSERT_TRUE(
        peer_
            ->Say(connection_,
                  wire::Welcome{.instance = peer_->instance,
                                .pool_blocks = 64,
                                .doors = {{.kind = TransportKind::kMapped,
                                           .description = mapped::MakeDoor(file_->file())}}})
            .ok());
    ASSERT_TRUE(peer_->Until([&] { return peer_->Last<wire::Fetch>() != nullptr; }));
    ASSERT_EQ(peer_->Last<wire::Fetch>()->reads, kMapped);
  }

  wire::Ready Good(std::uint32_t first_source = 2) const {
    const std::size_t bytes = SmallLayout().block_bytes();
    const auto* base = reinterpret_cast<const char*>(file_->file().base);
    const std::uint32_t crc = Crc32c({base + 60 * bytes, bytes}, Crc32c({base + 7 * bytes, bytes}));
    return {.handoff = id_,
            .epoch = 5,
            .round = 1,
            .sequence = 0,
            .first_layer = 0,
            .layer_count = 5,
            .crc32c = crc,
            .blocks = {{first_source, 7}, {first_source + 1, 60}}};
  }

  void ExpectDropped(const std::function<void(wire::Ready&)>& change, DropReason reason) {
    SCOPED_TRACE(std::string(ToString(reason)));
    wire::Ready ready = Good();
    change(ready);
    const std::uint64_t before = node_->service->stats().dropped_for(reason);
    ASSERT_TRUE(peer_->Say(connection_, ready).ok());
    EXPECT_TRUE(
        peer_->Until([&] { return node_->service->stats().dropped_for(reason) == before + 1; }));
    EXPECT_EQ(node_->service->stats().messages_received, received_);
    EXPECT_EQ(node_->fetches.Get(id_).calls(), 0);
  }

  void AnnounceAll() {
    if (received_ == 0) {
      ASSERT_TRUE(peer_->Say(connection_, Good()).ok());
    }
    ASSERT_TRUE(peer_->Say(connection_, Good(4)).ok());
    ASSERT_TRUE(peer_->Until([&] { return peer_->Last<wire::Ack>() != nullptr; }));
    EXPECT_EQ(peer_->Last<wire::Ack>()->confirm, 1);
    EXPECT_EQ(node_->fetches.Get(id_).calls(), 0);  // not before the peer's word
  }

  void ExpectOnlyLeasedBlocksChanged() {
    const std::vector<BlockId> mine = Scattered(2 + kBlocks, 64, 11);
    for (std::uint32_t i = 0; i < 64; ++i) {
      const bool leased = std::find(mine.begin() + 2, mine.end(), BlockId(i)) != mine.end();
      EXPECT_EQ(node_->pool.IsUntouched(BlockId(i)), !leased) << "block " << i;
    }
    EXPECT_TRUE(peer_->Until([&] { return node_->IsIdle(); }));
  }

  TestTransports transports_;
  std::unique_ptr<TestPoolFile> file_;
  std::unique_ptr<RawPeer> peer_;
  std::unique_ptr<Node> node_;
  HandoffId id_;
  PeerId connection_;
  std::uint64_t received_ = 0;
};

TEST_F(HostileReady, AnnouncementsThatDoNotFitAreDroppedBeforeAnythingIsRead) {
  Begin();
  ExpectDropped([](wire::Ready& r) { r.handoff = HandoffId::Make(); }, DropReason::kUnknownHandoff);
  ExpectDropped([](wire::Ready& r) { r.epoch = 4; }, DropReason::kWrongEpoch);
  ExpectDropped([](wire::Ready& r) { r.epoch = 6; }, DropReason::kWrongEpoch);
  ExpectDropped([](wire::Ready& r) { r.round = 0; }, DropReason::kReplayed);
  ExpectDropped([](wire::Ready& r) { r.round = 2; }, DropReason::kUnexpected);
  // Places outside the announced pool, by one and by an overflow.
  for (const std::uint32_t place : {64u, 65u, 0x80000000u, 0xffffffffu}) {
    ExpectDropped([&](wire::Ready& r) { r.blocks[1].place = place; }, DropReason::kBadBlocks);
  }
  for (const std::vector<wire::PlacedBlock>& blocks : std::vector<std::vector<wire::PlacedBlock>>{
           {{0, 7}, {1, 8}}, {{5, 7}, {6, 8}}, {{2, 7}, {2, 8}}, {{3, 7}, {2, 8}}, {}}) {
    ExpectDropped([&](wire::Ready& r) { r.blocks = blocks; }, DropReason::kBadBlocks);
  }
  ExpectDropped([](wire::Ready& r) { r.layer_count = 0; }, DropReason::kBadLayers);
  ExpectDropped([](wire::Ready& r) { r.layer_count = 6; }, DropReason::kBadLayers);
  ExpectDropped(
      [](wire::Ready& r) {
        r.first_layer = 0xffff;
        r.layer_count = 0xffff;
      },
      DropReason::kBadLayers);
  EXPECT_TRUE(node_->pool.IsUntouched(Scattered(6, 64, 11)[2]));
  // Messages with a payload are not what was asked for.
  const std::uint64_t before = node_->service->stats().dropped_for(DropReason::kUnexpected);
  const std::vector<std::byte> payload(2 * SmallLayout().block_bytes());
  ASSERT_TRUE(
      peer_
          ->Say(connection_,
                wire::Data{
                    .handoff = id_, .epoch = 5, .round = 1, .layer_count = 5, .blocks = {2, 3}},
                payload)
          .ok());
  ASSERT_TRUE(peer_->Until(
      [&] { return node_->service->stats().dropped_for(DropReason::kUnexpected) == before + 1; }));

  AnnounceAll();
  ASSERT_TRUE(peer_->Say(connection_, wire::Released{.handoff = id_, .epoch = 4}).ok());
  ASSERT_TRUE(peer_->Say(connection_, wire::Released{.handoff = id_, .epoch = 5}).ok());
  ASSERT_TRUE(peer_->Until([&] { return node_->fetches.Get(id_).calls() == 1; }));
  EXPECT_EQ(node_->fetches.Get(id_).landed, 1) << node_->fetches.Get(id_).why;
  ExpectOnlyLeasedBlocksChanged();
}

TEST_F(HostileReady, ReplayedAnnouncementsAreDropped) {
  Begin();
  ASSERT_TRUE(peer_->Say(connection_, Good()).ok());
  ASSERT_TRUE(peer_->Until([&] { return node_->service->stats().messages_received == 1; }));
  received_ = 1;
  ExpectDropped([](wire::Ready&) {}, DropReason::kReplayed);
  ExpectDropped([](wire::Ready& r) { r.blocks = {{3, 7}, {4, 8}}; }, DropReason::kReplayed);
  // Confirmed before all is read.
  const std::uint64_t before = node_->service->stats().dropped_for(DropReason::kUnexpected);
  ASSERT_TRUE(peer_->Say(connection_, wire::Released{.handoff = id_, .epoch = 5}).ok());
  ASSERT_TRUE(peer_->Until(
      [&] { return node_->service->stats().dropped_for(DropReason::kUnexpected) == before + 1; }));
  AnnounceAll();
  ASSERT_TRUE(peer_->Say(connection_, wire::Released{.handoff = id_, .epoch = 5}).ok());
  ASSERT_TRUE(peer_->Until([&] { return node_->fetches.Get(id_).landed == 1; }));
  ExpectOnlyLeasedBlocksChanged();
}

// T06: the lease ended before the last read: nothing of it is adopted.
TEST_F(HostileReady, BlocksWhoseLeaseHasEndedAreNotAdopted) {
  Begin();
  AnnounceAll();
  ASSERT_TRUE(
      peer_
          ->Say(connection_,
                wire::Error{.handoff = id_, .epoch = 5, .code = 10, .text = "lease expired"})
          .ok());
  ASSERT_TRUE(peer_->Until([&] { return node_->fetches.Get(id_).calls() == 1; }));
  EXPECT_EQ(node_->fetches.Get(id_).why.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(peer_->Until([&] { return node_->IsIdle(); }));
}

// The prefill side's half: an acknowledgement after the end of an offer is refused, one that is
// said again is confirmed again.
TEST(MappedTransport, AnAcknowledgementAfterTheLeaseIsRefused) {
  const TestTransports transports;
  Node node(transports.Make("mapped"));
  RawPeer peer(transports.Messages("inproc"));
  const std::optional<PeerId> connection = peer.Greet(node.service->address());
  ASSERT_TRUE(connection);
  ASSERT_EQ(peer.Last<wire::Welcome>()->doors.size(), 1u);
  const auto offer = [&] {
    const HandoffId id = HandoffId::Make();
    EXPECT_TRUE(node.service
                    ->Offer({.id = id,
                             .epoch = 5,
                             .peer = peer.instance,
                             .blocks = Scattered(4, 64, 7),
                             .pin = std::make_unique<CountingPin>(node.pins),
                             .sink = &node.offers})
                    .ok());
    node.ReadyAll(id, 4);
    const int ready = peer.CountOf<wire::Complete>();
    EXPECT_TRUE(peer.Say(*connection, wire::Fetch{.handoff = id,
                                                  .epoch = 5,
                                                  .round = 1,
                                                  .credit_bytes = 1,
                                                  .reads = kMapped,
                                                  .blocks = {{0, 4, 0, 5}}})
                    .ok());
    EXPECT_TRUE(peer.Until([&] { return peer.CountOf<wire::Complete>() == ready + 1; }));
    return id;
  };
  const HandoffId withdrawn = offer();
  EXPECT_EQ(peer.Last<wire::Ready>()->blocks.back().place, Scattered(4, 64, 7).back().value());
  node.service->Withdraw(withdrawn, absl::InternalError("engine failed"));
  ASSERT_TRUE(node.offers.WaitEnd(withdrawn));
  const wire::Ack ack{.handoff = withdrawn, .epoch = 5, .confirm = 1};
  ASSERT_TRUE(peer.Say(*connection, ack).ok());
  ASSERT_TRUE(peer.Until([&] {
    return peer.Last<wire::Error>() != nullptr &&
           peer.Last<wire::Error>()->code == static_cast<int>(absl::StatusCode::kAborted);
  }));
  EXPECT_EQ(peer.CountOf<wire::Released>(), 0);

  const HandoffId kept = offer();
  for (int times = 1; times <= 2; ++times) {
    ASSERT_TRUE(peer.Say(*connection, wire::Ack{.handoff = kept, .epoch = 5, .confirm = 1}).ok());
    ASSERT_TRUE(peer.Until([&] { return peer.CountOf<wire::Released>() == times; }));
  }
  EXPECT_EQ(node.offers.Get(kept).state, PrefillHandoffState::kReleased);
  EXPECT_EQ(node.offers.Get(kept).calls, 1);
}

}  // namespace
}  // namespace baton
