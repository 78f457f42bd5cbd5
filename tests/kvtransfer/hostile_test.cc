#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "tests/kvtransfer/raw_peer.h"
#include "tests/kvtransfer/test_transports.h"

namespace baton {
namespace {

// F35, F37, T14: a peer that says what no honest one would. What it says is dropped and counted,
// never fatal, and no byte outside the leased blocks of the handoff changes.
class Hostile : public testing::TestWithParam<std::string> {
 protected:
  TransportFactory Factory() { return transports_.Messages(GetParam()); }

  NodeTransport NodeFactory() { return transports_.Make(GetParam()); }

  TestTransports transports_;
};

// A decode-side node that fetches from a hostile prefill side.
class HostilePrefill : public Hostile {
 protected:
  static constexpr int kBlocks = 4;

  // The fetch stands and its first message has been heard; `data` fits it.
  void Begin() {
    peer_ = std::make_unique<RawPeer>(Factory());
    node_ = std::make_unique<Node>(NodeFactory());
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
    ASSERT_TRUE(peer_->Say(connection_, wire::Welcome{peer_->instance, {}}).ok());
    ASSERT_TRUE(peer_->Until([&] { return peer_->Last<wire::Fetch>() != nullptr; }));
    payload_.assign(2 * 5 * 1040, std::byte{0x77});
  }

  wire::Data Good() const {
    return {.handoff = id_,
            .epoch = 5,
            .round = 1,
            .sequence = 0,
            .first_layer = 0,
            .layer_count = 5,
            .crc32c = Crc32c({reinterpret_cast<const char*>(payload_.data()), payload_.size()}),
            .blocks = {2, 3}};
  }

  void ExpectDropped(const wire::Data& data,
                     std::span<const std::byte> payload,
                     DropReason reason) {
    SCOPED_TRACE(std::string(ToString(reason)));
    const std::uint64_t before = node_->service->stats().dropped_for(reason);
    ASSERT_TRUE(peer_->Say(connection_, data, payload).ok());
    EXPECT_TRUE(
        peer_->Until([&] { return node_->service->stats().dropped_for(reason) == before + 1; }));
    EXPECT_EQ(node_->service->stats().messages_received, received_);
    EXPECT_EQ(node_->fetches.Get(id_).calls(), 0);
  }

  // The rest of the handoff, honestly; then every block outside it must be as it was.
  void FinishHonestly() {
    wire::Data rest = Good();
    if (received_ == 0) {
      ASSERT_TRUE(peer_->Say(connection_, rest, payload_).ok());
    }
    rest.blocks = {4, 5};
    ASSERT_TRUE(peer_->Say(connection_, rest, payload_).ok());
    ASSERT_TRUE(peer_->Until([&] { return node_->fetches.Get(id_).calls() == 1; }));
    EXPECT_EQ(node_->fetches.Get(id_).landed, 1) << node_->fetches.Get(id_).why;
    const std::vector<BlockId> mine = Scattered(2 + kBlocks, 64, 11);
    for (std::uint32_t i = 0; i < 64; ++i) {
      const bool leased = std::find(mine.begin() + 2, mine.end(), BlockId(i)) != mine.end();
      EXPECT_EQ(node_->pool.IsUntouched(BlockId(i)), !leased) << "block " << i;
    }
    EXPECT_TRUE(peer_->Until([&] { return node_->IsIdle(); }));
  }

  std::unique_ptr<RawPeer> peer_;
  std::unique_ptr<Node> node_;
  HandoffId id_;
  PeerId connection_;
  std::vector<std::byte> payload_;
  std::uint64_t received_ = 0;
};

TEST_P(HostilePrefill, PiecesThatDoNotFitAreDroppedBeforeMemoryIsNamed) {
  Begin();
  const std::span<const std::byte> payload = payload_;
  const auto with = [&](const std::function<void(wire::Data&)>& change) {
    wire::Data data = Good();
    change(data);
    return data;
  };
  ExpectDropped(with([](wire::Data& d) { d.handoff = HandoffId::Make(); }), payload,
                DropReason::kUnknownHandoff);
  ExpectDropped(with([](wire::Data& d) { d.epoch = 4; }), payload, DropReason::kWrongEpoch);
  ExpectDropped(with([](wire::Data& d) { d.epoch = 6; }), payload, DropReason::kWrongEpoch);
  ExpectDropped(with([](wire::Data& d) { d.round = 0; }), payload, DropReason::kReplayed);
  ExpectDropped(with([](wire::Data& d) { d.round = 2; }), payload, DropReason::kUnexpected);
  // In the offer perhaps, but not asked for; far out; twice; backwards; none.
  for (const std::vector<std::uint32_t>& blocks : std::vector<std::vector<std::uint32_t>>{
           {0, 1}, {1, 2}, {5, 6}, {2, 0xffffffff}, {0x80000000, 0x80000001}, {2, 2}, {3, 2}, {}}) {
    ExpectDropped(with([&](wire::Data& d) { d.blocks = blocks; }), payload, DropReason::kBadBlocks);
  }
  ExpectDropped(with([](wire::Data& d) { d.layer_count = 0; }), payload, DropReason::kBadLayers);
  ExpectDropped(with([](wire::Data& d) { d.layer_count = 6; }), payload, DropReason::kBadLayers);
  ExpectDropped(with([](wire::Data& d) { d.first_layer = 1; }), payload, DropReason::kBadLayers);
  ExpectDropped(with([](wire::Data& d) {
                  d.first_layer = 0xffff;
                  d.layer_count = 0xffff;
                }),
                payload, DropReason::kBadLayers);
  ExpectDropped(Good(), payload.first(payload.size() - 1), DropReason::kBadLength);
  ExpectDropped(Good(), payload.first(1), DropReason::kBadLength);
  const std::vector<std::byte> longer(payload.size() + 1);
  ExpectDropped(Good(), longer, DropReason::kBadLength);
  ExpectDropped(with([](wire::Data& d) { d.layer_count = 4; }), payload, DropReason::kBadLength);
  FinishHonestly();
}

TEST_P(HostilePrefill, ReplayedPiecesAreDropped) {
  Begin();
  ASSERT_TRUE(peer_->Say(connection_, Good(), payload_).ok());
  ASSERT_TRUE(peer_->Until([&] { return node_->service->stats().messages_received == 1; }));
  received_ = 1;
  ExpectDropped(Good(), payload_, DropReason::kReplayed);
  wire::Data overlapping = Good();
  overlapping.blocks = {3, 4};
  ExpectDropped(overlapping, payload_, DropReason::kReplayed);
  wire::Data part = Good();
  part.first_layer = 4;
  part.layer_count = 1;
  ExpectDropped(part, std::span(payload_).first(2 * 1040), DropReason::kReplayed);
  FinishHonestly();

  // The whole handoff again, after its end.
  const std::uint64_t before = node_->service->stats().dropped_for(DropReason::kUnknownHandoff);
  ASSERT_TRUE(peer_->Say(connection_, Good(), payload_).ok());
  EXPECT_TRUE(peer_->Until([&] {
    return node_->service->stats().dropped_for(DropReason::kUnknownHandoff) == before + 1;
  }));
}

TEST_P(HostilePrefill, AChecksumThatIsSaidToFollowMustFollow) {
  Begin();
  wire::Data data = Good();
  data.crc32c = 0;
  data.checksum_follows = 1;
  ExpectDropped(data, payload_, DropReason::kChecksum);
  FinishHonestly();
}

// An honest peer says it again until it hears of the end, and may be heard after it.
TEST_P(HostilePrefill, ALateCompleteIsNotCounted) {
  Begin();
  FinishHonestly();
  const std::uint64_t before = node_->service->stats().dropped_for(DropReason::kUnknownHandoff);
  wire::Complete complete{.handoff = id_, .epoch = 5, .round = 1};
  ASSERT_TRUE(peer_->Say(connection_, complete).ok());
  complete.handoff = HandoffId::Make();
  ASSERT_TRUE(peer_->Say(connection_, complete).ok());
  const auto dropped = [&] {
    return node_->service->stats().dropped_for(DropReason::kUnknownHandoff) - before;
  };
  ASSERT_TRUE(peer_->Until([&] { return dropped() > 0; }));
  EXPECT_EQ(dropped(), 1u);
}

TEST_P(HostilePrefill, BytesThatAreNoMessageAreDropped) {
  Begin();
  const std::uint64_t before = node_->service->stats().dropped_for(DropReason::kMalformed);
  ASSERT_TRUE(peer_->SendBytes(connection_, "").ok());
  ASSERT_TRUE(peer_->SendBytes(connection_, "rubbish").ok());
  ASSERT_TRUE(peer_->SendBytes(connection_, std::string(kMaxControlBytes, '\xff')).ok());
  ASSERT_TRUE(peer_->SendBytes(connection_, "rubbish", payload_).ok());
  ASSERT_TRUE(peer_->SendBytes(connection_, wire::Encode(Good()).substr(0, 40), payload_).ok());
  EXPECT_TRUE(peer_->Until([&] {
    return node_->service->stats().dropped_for(DropReason::kMalformed) == before + 5;
  })) << node_->service->stats().dropped_for(DropReason::kMalformed);
  // Messages with no place in the conversation.
  const std::uint64_t unexpected = node_->service->stats().dropped_for(DropReason::kUnexpected);
  ASSERT_TRUE(peer_->Say(connection_, wire::Hello{}).ok());
  ASSERT_TRUE(peer_->Say(connection_, wire::Welcome{peer_->instance, {}}).ok());
  ASSERT_TRUE(peer_->Say(connection_, Good()).ok());
  ASSERT_TRUE(peer_->Say(connection_, wire::Pong{}, payload_).ok());
  ASSERT_TRUE(peer_->Say(connection_, wire::Error{.code = 13, .text = "connection"}).ok());
  EXPECT_TRUE(peer_->Until([&] {
    return node_->service->stats().dropped_for(DropReason::kUnexpected) == unexpected + 5;
  }));
  FinishHonestly();
}

// Another process that somehow learnt the handoff's id cannot speak for it.
TEST_P(HostilePrefill, AThirdPartyCannotTouchTheHandoff) {
  Begin();
  RawPeer third(Factory());
  const std::optional<PeerId> connection = third.Greet(node_->service->address());
  ASSERT_TRUE(connection);
  const std::uint64_t before = node_->service->stats().dropped_for(DropReason::kWrongPeer);
  ASSERT_TRUE(third.Say(*connection, Good(), payload_).ok());
  ASSERT_TRUE(third.Say(*connection, wire::Complete{.handoff = id_, .epoch = 5, .round = 1}).ok());
  ASSERT_TRUE(
      third.Say(*connection, wire::Error{.handoff = id_, .epoch = 5, .code = 13, .text = "x"})
          .ok());
  EXPECT_TRUE(third.Until(
      [&] { return node_->service->stats().dropped_for(DropReason::kWrongPeer) == before + 3; }));
  FinishHonestly();
}

TEST_P(HostilePrefill, CompleteWithoutPiecesAsksOnceAndFails) {
  Begin();
  ASSERT_TRUE(peer_->Say(connection_, wire::Complete{.handoff = id_, .epoch = 5, .round = 1}).ok());
  ASSERT_TRUE(peer_->Until([&] { return peer_->CountOf<wire::Fetch>() == 2; }));
  EXPECT_EQ(peer_->Last<wire::Fetch>()->round, 2u);
  EXPECT_EQ(peer_->Last<wire::Fetch>()->blocks, (std::vector<wire::BlockRun>{{2, 4, 0, 5}}));
  ASSERT_TRUE(peer_->Say(connection_, wire::Complete{.handoff = id_, .epoch = 5, .round = 1}).ok());
  ASSERT_TRUE(peer_->Say(connection_, wire::Complete{.handoff = id_, .epoch = 5, .round = 2}).ok());
  ASSERT_TRUE(peer_->Until([&] { return node_->fetches.Get(id_).calls() == 1; }));
  EXPECT_EQ(node_->fetches.Get(id_).why.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(peer_->Until([&] { return node_->IsIdle(); }));
}

// F19: the other process is of another build. Whatever it answers to our greeting is of its own
// version, its refusal too, so that the versions are all there is to tell the operator.
TEST_P(HostilePrefill, AnotherVersionIsRefusedWithBothNamed) {
  const wire::Message answers[] = {
      wire::Welcome{}, wire::Error{.code = 9, .text = "transfer protocol: ours 9, theirs 3"}};
  for (const wire::Message& answer : answers) {
    RawPeer other(Factory());
    Node node(NodeFactory());
    const HandoffId id = HandoffId::Make();
    ASSERT_TRUE(node.service
                    ->Fetch({.id = id,
                             .epoch = 1,
                             .address = other.transport->address(),
                             .peer = other.instance,
                             .blocks = MapFrom(0, Scattered(4, 64, 11)),
                             .pin = std::make_unique<CountingPin>(node.pins),
                             .deadline = Clock::System().Now() + kTestPatience,
                             .sink = &node.fetches})
                    .ok());
    ASSERT_TRUE(other.Until([&] { return other.Last<wire::Hello>() != nullptr; }));
    std::string bytes = wire::Encode(answer);
    bytes[4] = 9;
    ASSERT_TRUE(other.SendBytes(other.accepted[0], bytes).ok());

    ASSERT_TRUE(other.Until([&] { return node.fetches.Get(id).calls() == 1; }));
    const absl::Status why = node.fetches.Get(id).why;
    EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition) << why;
    EXPECT_NE(why.message().find(absl::StrCat("ours ", wire::kVersion, ", theirs 9")),
              absl::string_view::npos)
        << why;
    EXPECT_TRUE(other.Until([&] { return node.IsIdle(); }));
  }
}

// A prefill-side node whose blocks a hostile decode side asks for.
class HostileDecode : public Hostile {
 protected:
  void Begin() {
    node_ = std::make_unique<Node>(NodeFactory(),
                                   [](TransferOptions& options) { options.parked_fetches = 3; });
    peer_ = std::make_unique<RawPeer>(Factory());
    const std::optional<PeerId> connection = peer_->Greet(node_->service->address());
    ASSERT_TRUE(connection);
    connection_ = *connection;
    id_ = HandoffId::Make();
    ASSERT_TRUE(node_->service
                    ->Offer({.id = id_,
                             .epoch = 5,
                             .peer = peer_->instance,
                             .blocks = Scattered(4, 64, 7),
                             .pin = std::make_unique<CountingPin>(node_->pins),
                             .sink = &node_->offers})
                    .ok());
    node_->ReadyAll(id_, 4);
    ASSERT_TRUE(WaitUntil([&] { return node_->service->stats().offers == 1; }));
  }

  wire::Fetch Good() const {
    return {
        .handoff = id_, .epoch = 5, .round = 1, .credit_bytes = 1 << 20, .blocks = {{0, 4, 0, 5}}};
  }

  template <typename M>
  void ExpectDropped(const M& message, DropReason reason) {
    SCOPED_TRACE(std::string(ToString(reason)));
    const std::uint64_t before = node_->service->stats().dropped_for(reason);
    ASSERT_TRUE(peer_->Say(connection_, message).ok());
    EXPECT_TRUE(
        peer_->Until([&] { return node_->service->stats().dropped_for(reason) == before + 1; }));
    EXPECT_EQ(node_->service->stats().messages_sent, 0u);
    EXPECT_EQ(node_->offers.Get(id_).calls, 0);
  }

  std::unique_ptr<Node> node_;
  std::unique_ptr<RawPeer> peer_;
  PeerId connection_;
  HandoffId id_;
};

TEST_P(HostileDecode, FetchesThatDoNotFitAreDropped) {
  Begin();
  const auto with = [&](const std::function<void(wire::Fetch&)>& change) {
    wire::Fetch fetch = Good();
    change(fetch);
    return fetch;
  };
  ExpectDropped(with([](wire::Fetch& f) { f.epoch = 4; }), DropReason::kWrongEpoch);
  for (const std::vector<wire::BlockRun>& blocks :
       std::vector<std::vector<wire::BlockRun>>{{},
                                                {{0, 5, 0, 5}},
                                                {{4, 1, 0, 5}},
                                                {{0, 0, 0, 5}},
                                                {{0, 2, 0, 5}, {1, 2, 0, 5}},
                                                {{0, 2, 0, 3}, {1, 2, 2, 1}},
                                                {{0xffffffff, 0xffffffff, 0, 5}},
                                                {{1, 0xffffffff, 0, 5}}}) {
    ExpectDropped(with([&](wire::Fetch& f) { f.blocks = blocks; }), DropReason::kBadBlocks);
  }
  ExpectDropped(with([](wire::Fetch& f) { f.blocks[0].layer_count = 0; }), DropReason::kBadLayers);
  ExpectDropped(with([](wire::Fetch& f) { f.blocks[0].layer_count = 6; }), DropReason::kBadLayers);
  ExpectDropped(with([](wire::Fetch& f) {
                  f.blocks[0].first_layer = 0xffff;
                  f.blocks[0].layer_count = 0xffff;
                }),
                DropReason::kBadLayers);
  // Ways to read that were not offered, or do not exist.
  for (const std::uint16_t reads : {1, 2, 3, 0xffff}) {
    ExpectDropped(with([&](wire::Fetch& f) { f.reads = reads; }), DropReason::kUnexpected);
  }
  ExpectDropped(wire::Ack{.handoff = id_, .epoch = 5}, DropReason::kUnexpected);
  ExpectDropped(wire::Ack{.handoff = id_, .epoch = 4}, DropReason::kWrongEpoch);
  ExpectDropped(wire::Ack{.handoff = HandoffId::Make(), .epoch = 5}, DropReason::kUnknownHandoff);
  ExpectDropped(wire::Cancel{.handoff = id_, .epoch = 4}, DropReason::kWrongEpoch);
  ExpectDropped(wire::Complete{.handoff = id_, .epoch = 5}, DropReason::kUnknownHandoff);

  // Honestly at last: four blocks arrive, and an acknowledgement releases them.
  ASSERT_TRUE(peer_->Say(connection_, Good()).ok());
  ASSERT_TRUE(peer_->Until([&] { return peer_->Last<wire::Complete>() != nullptr; }));
  EXPECT_EQ(peer_->Last<wire::Complete>()->bytes, 4u * 5 * 1040);
  ASSERT_TRUE(peer_->Say(connection_, Good()).ok());  // a replay
  ASSERT_TRUE(peer_->Until(
      [&] { return node_->service->stats().dropped_for(DropReason::kReplayed) == 1; }));
  ASSERT_TRUE(peer_->Say(connection_, wire::Ack{.handoff = id_, .epoch = 5}).ok());
  ASSERT_TRUE(peer_->Until([&] { return node_->offers.Get(id_).calls == 1; }));
  EXPECT_EQ(node_->offers.Get(id_).state, PrefillHandoffState::kReleased);
  // And a replay after the end is told so.
  ASSERT_TRUE(peer_->Say(connection_, Good()).ok());
  ASSERT_TRUE(peer_->Until([&] { return peer_->Last<wire::Error>()->text == "handoff is over"; }));
}

// The id alone gives no right to the blocks.
TEST_P(HostileDecode, AThirdPartyCannotFetch) {
  Begin();
  RawPeer third(Factory());
  const std::optional<PeerId> connection = third.Greet(node_->service->address());
  ASSERT_TRUE(connection);
  ASSERT_TRUE(third.Say(*connection, Good()).ok());
  ASSERT_TRUE(third.Say(*connection, wire::Cancel{.handoff = id_, .epoch = 5}).ok());
  ASSERT_TRUE(third.Say(*connection, wire::Ack{.handoff = id_, .epoch = 5}).ok());
  EXPECT_TRUE(third.Until(
      [&] { return node_->service->stats().dropped_for(DropReason::kWrongPeer) == 3; }));
  EXPECT_EQ(node_->service->stats().messages_sent, 0u);
  EXPECT_EQ(node_->offers.Get(id_).calls, 0);
}

// Fetches for offers that never come are bounded, and go with their connection.
TEST_P(HostileDecode, ParkedFetchesAreBounded) {
  Begin();
  for (int i = 0; i < 5; ++i) {
    wire::Fetch fetch = Good();
    fetch.handoff = HandoffId::Make();
    ASSERT_TRUE(peer_->Say(connection_, fetch).ok());
  }
  ASSERT_TRUE(peer_->Until([&] { return peer_->CountOf<wire::Error>() == 2; }));
  EXPECT_EQ(peer_->Last<wire::Error>()->code,
            static_cast<std::uint16_t>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(node_->service->stats().parked_fetches, 3);
  peer_->transport->Close(connection_);
  EXPECT_TRUE(peer_->Until([&] { return node_->service->stats().parked_fetches == 0; }));
}

// Nothing but a greeting is heard before the greeting.
TEST_P(HostileDecode, NothingIsServedBeforeTheGreeting) {
  Begin();
  RawPeer silent(Factory());
  const PeerId connection = *silent.transport->Connect(node_->service->address());
  const std::uint64_t before = node_->service->stats().dropped_for(DropReason::kUnexpected);
  ASSERT_TRUE(silent.Say(connection, Good()).ok());
  ASSERT_TRUE(silent.Say(connection, wire::Ping{}).ok());
  EXPECT_TRUE(silent.Until(
      [&] { return node_->service->stats().dropped_for(DropReason::kUnexpected) == before + 2; }));
  // F19.
  std::string other_version = wire::Encode(wire::Hello{});
  other_version[4] = 9;
  ASSERT_TRUE(silent.SendBytes(connection, other_version).ok());
  ASSERT_TRUE(silent.Until([&] { return silent.Last<wire::Error>() != nullptr; }));
  EXPECT_EQ(silent.Last<wire::Error>()->code,
            static_cast<std::uint16_t>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(silent.Last<wire::Error>()->text,
            absl::StrCat("transfer protocol: ours ", wire::kVersion, ", theirs 9"));
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         HostilePrefill,
                         testing::Values("inproc", "ucx", "grpc"),
                         kTransportName);
INSTANTIATE_TEST_SUITE_P(Transports,
                         HostileDecode,
                         testing::Values("inproc", "ucx", "grpc"),
                         kTransportName);
INSTANTIATE_TEST_SUITE_P(DevicePools,
                         HostilePrefill,
                         testing::Values("staged_inproc", "staged_ucx"),
                         kTransportName);
INSTANTIATE_TEST_SUITE_P(DevicePools,
                         HostileDecode,
                         testing::Values("staged_inproc", "staged_ucx"),
                         kTransportName);

}  // namespace
}  // namespace baton
