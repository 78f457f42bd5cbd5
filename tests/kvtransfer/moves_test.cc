#include <gtest/gtest.h>

#include "kvtransfer/transport_set.h"
#include "tests/kvtransfer/test_transports.h"

namespace baton {
namespace {

using faulty::Fault;
using faulty::FaultAction;

constexpr int kBlocks = 12;

// A handoff whose transport breaks in the middle goes on over another one that both sides have.
class Moves : public testing::Test {
 protected:
  // UCX, damaged in the way named, and gRPC beside it.
  NodeTransport UcxAndGrpc(std::vector<Fault> faults) const {
    return MakeTransportSet({faulty::MakeTransport(ucx::MakeTransport({}), std::move(faults)),
                             grpc_stream::MakeTransport({})});
  }

  FetchRecorder::End HandOver(Node& prefill, Node& decode) {
    const HandoffId id = HandoffId::Make();
    const std::vector<BlockId> sources = Scattered(kBlocks, 64, 7);
    const std::vector<BlockId> destinations = Scattered(kBlocks, 64, 11);
    for (std::size_t i = 0; i < kBlocks; ++i) {
      prefill.pool.Fill(sources[i], i);
    }
    EXPECT_TRUE(prefill.Offer(id, decode, sources).ok());
    EXPECT_TRUE(decode.Fetch(id, prefill, MapFrom(0, destinations)).ok());
    prefill.ReadyAll(id, kBlocks);
    EXPECT_TRUE(decode.fetches.WaitEnd(id));
    if (decode.fetches.Get(id).landed == 1) {
      EXPECT_TRUE(prefill.offers.WaitEnd(id));
      EXPECT_EQ(prefill.offers.Get(id).state, PrefillHandoffState::kReleased);
      for (std::size_t i = 0; i < kBlocks; ++i) {
        EXPECT_TRUE(decode.pool.Holds(destinations[i], i)) << "block " << i;
      }
      EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
    }
    return decode.fetches.Get(id);
  }

  const TestTransports transports_;
};

TEST_F(Moves, ToGrpcWhenTheUcxConnectionBreaks) {
  Node prefill(
      UcxAndGrpc({{.action = FaultAction::kKill, .type = wire::MessageType::kData, .first = 2}}),
      [](TransferOptions& options) { options.messages_in_flight = 1; });
  Node decode(UcxAndGrpc({}));

  const FetchRecorder::End end = HandOver(prefill, decode);

  EXPECT_EQ(end.landed, 1) << end.why;
  EXPECT_EQ(end.stats.moves, 1);
  EXPECT_EQ(end.stats.transport, "grpc");
  // The two messages of three blocks each that had landed did not come again.
  EXPECT_EQ(end.stats.bytes, kBlocks * SmallLayout().block_bytes());
  EXPECT_EQ(decode.service->stats().moves, 1u);
  // The next handoff takes the better one again.
  const FetchRecorder::End next = HandOver(prefill, decode);
  EXPECT_EQ(next.landed, 1) << next.why;
  EXPECT_EQ(next.stats.transport, "tcp");
}

// No block is whole yet, but two layers of all of them are here.
TEST_F(Moves, KeepsTheLayersThatHaveLanded) {
  Node prefill(
      UcxAndGrpc({{.action = FaultAction::kKill, .type = wire::MessageType::kData, .first = 2}}));
  Node decode(UcxAndGrpc({}));
  const HandoffId id = HandoffId::Make();
  const std::vector<BlockId> sources = Scattered(kBlocks, 64, 7);
  const std::vector<BlockId> destinations = Scattered(kBlocks, 64, 11);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    prefill.pool.Fill(sources[i], i);
  }
  ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
  ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, destinations)).ok());
  for (int layer = 0; layer < 2; ++layer) {
    prefill.service->MarkReady(
        id, {.first_block = 0, .block_count = kBlocks, .first_layer = layer, .layer_count = 1});
    ASSERT_TRUE(WaitUntil([&] {
      return decode.service->stats().messages_received == static_cast<std::uint64_t>(layer) + 1;
    }));
  }
  prefill.ReadyAll(id, kBlocks);

  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  const FetchRecorder::End end = decode.fetches.Get(id);
  EXPECT_EQ(end.landed, 1) << end.why;
  EXPECT_EQ(end.stats.moves, 1);
  EXPECT_EQ(end.stats.transport, "grpc");
  EXPECT_EQ(end.stats.bytes, kBlocks * SmallLayout().block_bytes());
  for (std::size_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(decode.pool.Holds(destinations[i], i)) << "block " << i;
  }
}

// Nobody answers at the better address: the listener is gone, the process lives.
TEST_F(Moves, ToGrpcWhenUcxCannotBeReached) {
  Node prefill(UcxAndGrpc({}));
  Node decode(UcxAndGrpc({{.action = FaultAction::kKill, .type = wire::MessageType::kHello}}));
  const FetchRecorder::End end = HandOver(prefill, decode);
  EXPECT_EQ(end.landed, 1) << end.why;
  EXPECT_EQ(end.stats.transport, "grpc");
}

// What is asked for is not replaced.
TEST_F(Moves, NowhereWhenATransportIsForced) {
  Node prefill(
      UcxAndGrpc({{.action = FaultAction::kKill, .type = wire::MessageType::kData, .first = 2}}));
  Node decode(UcxAndGrpc({}),
              [](TransferOptions& options) { options.transport.forced = TransportKind::kTcp; });
  const FetchRecorder::End end = HandOver(prefill, decode);
  EXPECT_EQ(end.failed, 1);
  EXPECT_EQ(end.why.code(), absl::StatusCode::kUnavailable) << end.why;
}

// F1: the process behind all of its addresses is gone: the fetch fails well within the time in
// which another prefill worker must be asked.
TEST_F(Moves, NowhereWhenThePeerIsGone) {
  Node decode(UcxAndGrpc({}));
  auto prefill = std::make_unique<Node>(UcxAndGrpc({}));
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(prefill->Offer(id, decode, Scattered(4, 64, 7)).ok());
  ASSERT_TRUE(decode.Fetch(id, *prefill, MapFrom(0, Scattered(4, 64, 11))).ok());
  ASSERT_TRUE(WaitUntil([&] { return decode.service->stats().connections == 1; }));
  const TimePoint begin = Clock::System().Now();
  prefill.reset();
  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  EXPECT_EQ(decode.fetches.Get(id).why.code(), absl::StatusCode::kUnavailable)
      << decode.fetches.Get(id).why;
  EXPECT_LT(Clock::System().Now() - begin, std::chrono::seconds(2));
  EXPECT_TRUE(WaitUntil([&] { return decode.IsIdle(); }));
}

}  // namespace
}  // namespace baton
