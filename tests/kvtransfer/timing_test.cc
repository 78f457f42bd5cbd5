#include <gtest/gtest.h>
#include <time.h>

#include "common/crc32c.h"
#include "kvtransfer/inproc/inproc_transport.h"
#include "kvtransfer/ucx/ucx_transport.h"
#include "tests/kvtransfer/raw_peer.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Leases, heartbeats and deadlines on a clock that the test moves.
class Timing : public testing::Test {
 protected:
  Timing() { ucx::SetDefaults(); }

  std::unique_ptr<Node> MakeNode(TransportFactory factory) {
    return std::make_unique<Node>(std::move(factory),
                                  [this](TransferOptions& options) { options.clock = &clock_; });
  }
  std::unique_ptr<Node> MakeNode() { return MakeNode(inproc::MakeTransport(hub_)); }

  // A fetch from a prefill side that the test plays.
  absl::Status FetchFrom(Node& node,
                         const RawPeer& peer,
                         HandoffId id,
                         Duration patience = std::chrono::hours(1)) {
    return node.service->Fetch({.id = id,
                                .epoch = 1,
                                .address = peer.transport->address(),
                                .peer = peer.instance,
                                .blocks = MapFrom(0, Scattered(4, 64, 11)),
                                .pin = std::make_unique<CountingPin>(node.pins),
                                .deadline = clock_.Now() + patience,
                                .sink = &node.fetches});
  }
  static void Welcome(RawPeer& peer) {
    ASSERT_TRUE(peer.Until([&] { return peer.Last<wire::Hello>() != nullptr; }));
    ASSERT_TRUE(peer.Say(peer.accepted.back(), wire::Welcome{peer.instance, {}}).ok());
    ASSERT_TRUE(peer.Until([&] { return peer.Last<wire::Fetch>() != nullptr; }));
  }
  // Nothing happens although everybody had the time to act.
  static bool StaysSo(RawPeer& peer, const std::function<bool()>& condition) {
    return !peer.Until([&] { return !condition(); }, milliseconds(30));
  }

  FakeClock clock_;
  std::shared_ptr<inproc::Hub> hub_ = inproc::MakeHub();
};

// T12: nobody ever asks for the blocks.
TEST_F(Timing, OfferExpiresWhenNobodyRenewsIt) {
  const std::unique_ptr<Node> node = MakeNode();
  RawPeer peer(inproc::MakeTransport(hub_));
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(node->service
                  ->Offer({.id = id,
                           .epoch = 1,
                           .peer = peer.instance,
                           .blocks = Scattered(4, 64, 7),
                           .pin = std::make_unique<CountingPin>(node->pins),
                           .sink = &node->offers})
                  .ok());
  ASSERT_TRUE(WaitUntil([&] { return node->service->stats().offers == 1; }));
  clock_.Advance(milliseconds(4900));
  EXPECT_TRUE(StaysSo(peer, [&] { return node->offers.Get(id).calls == 0; }));
  clock_.Advance(milliseconds(200));
  ASSERT_TRUE(node->offers.WaitEnd(id));
  EXPECT_EQ(node->offers.Get(id).state, PrefillHandoffState::kExpired);
  EXPECT_EQ(node->offers.Get(id).why.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(node->offers.Get(id).pins_alive, 0);
}

// T06, F4, F10: pings renew the lease; when they stop the peer is taken for dead, the blocks come
// back with the end of the lease, and a peer that wakes up afterwards is refused.
TEST_F(Timing, LeaseLivesOnPings) {
  const std::unique_ptr<Node> node = MakeNode();
  RawPeer peer(inproc::MakeTransport(hub_));
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(node->service
                  ->Offer({.id = id,
                           .epoch = 1,
                           .peer = peer.instance,
                           .blocks = Scattered(4, 64, 7),
                           .pin = std::make_unique<CountingPin>(node->pins),
                           .sink = &node->offers})
                  .ok());
  std::optional<PeerId> connection = peer.Greet(node->service->address());
  ASSERT_TRUE(connection);
  const wire::Fetch fetch{
      .handoff = id, .epoch = 1, .round = 1, .credit_bytes = 1 << 20, .blocks = {{0, 4, 0, 5}}};
  ASSERT_TRUE(peer.Say(*connection, fetch).ok());

  for (int beat = 0; beat < 20; ++beat) {
    const int pongs = peer.CountOf<wire::Pong>();
    ASSERT_TRUE(peer.Say(*connection, wire::Ping{.renewed = {id}}).ok());
    ASSERT_TRUE(peer.Until([&] { return peer.CountOf<wire::Pong>() > pongs; }));
    clock_.Advance(milliseconds(500));
  }
  EXPECT_EQ(node->offers.Get(id).calls, 0);
  EXPECT_TRUE(peer.closed.empty());

  clock_.Advance(milliseconds(600));
  ASSERT_TRUE(peer.Until([&] { return peer.closed.size() == 1; }));
  EXPECT_EQ(node->offers.Get(id).calls, 0);
  clock_.Advance(seconds(5));
  ASSERT_TRUE(node->offers.WaitEnd(id));
  EXPECT_EQ(node->offers.Get(id).state, PrefillHandoffState::kExpired);
  EXPECT_TRUE(WaitUntil([&] { return node->IsIdle(); }));

  connection = peer.Greet(node->service->address());
  ASSERT_TRUE(connection);
  ASSERT_TRUE(peer.Say(*connection, fetch).ok());
  ASSERT_TRUE(peer.Until([&] { return peer.Last<wire::Error>() != nullptr; }));
  EXPECT_EQ(peer.Last<wire::Error>()->text, "handoff is over");
}

// A ping for somebody else's handoff, or for none, renews nothing.
TEST_F(Timing, PingsRenewOnlyWhatIsTheirs) {
  const std::unique_ptr<Node> node = MakeNode();
  RawPeer third(inproc::MakeTransport(hub_));
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(node->service
                  ->Offer({.id = id,
                           .epoch = 1,
                           .peer = InstanceId::Make(),
                           .blocks = Scattered(4, 64, 7),
                           .pin = std::make_unique<CountingPin>(node->pins),
                           .sink = &node->offers})
                  .ok());
  const std::optional<PeerId> connection = third.Greet(node->service->address());
  ASSERT_TRUE(connection);
  for (int beat = 0; beat < 6; ++beat) {
    const int pongs = third.CountOf<wire::Pong>();
    ASSERT_TRUE(third.Say(*connection, wire::Ping{.renewed = {id, HandoffId::Make()}}).ok());
    ASSERT_TRUE(third.Until([&] { return third.CountOf<wire::Pong>() > pongs; }));
    clock_.Advance(milliseconds(900));
  }
  ASSERT_TRUE(node->offers.WaitEnd(id));
  EXPECT_EQ(node->offers.Get(id).state, PrefillHandoffState::kExpired);
}

// T37, F9: a silent peer is dead after a second, not before; one that answers pings is not.
TEST_F(Timing, SilentPrefillSideFailsTheFetchAfterASecond) {
  const std::unique_ptr<Node> node = MakeNode();
  RawPeer peer(inproc::MakeTransport(hub_));
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(FetchFrom(*node, peer, id).ok());
  Welcome(peer);
  for (int beat = 1; beat <= 10; ++beat) {
    clock_.Advance(milliseconds(500));
    ASSERT_TRUE(peer.Until([&] { return peer.CountOf<wire::Ping>() >= beat; }));
    EXPECT_EQ(peer.Last<wire::Ping>()->renewed, (std::vector<HandoffId>{id}));
    ASSERT_TRUE(peer.Say(peer.accepted[0], wire::Pong{}).ok());
    ASSERT_TRUE(peer.Until([&] { return peer.sent.size() == static_cast<std::size_t>(beat) + 1; }));
  }
  EXPECT_TRUE(StaysSo(peer, [&] { return node->fetches.Get(id).calls() == 0; }));
  clock_.Advance(milliseconds(950));
  EXPECT_TRUE(StaysSo(peer, [&] { return node->fetches.Get(id).calls() == 0; }));
  clock_.Advance(milliseconds(100));
  ASSERT_TRUE(node->fetches.WaitEnd(id));
  EXPECT_EQ(node->fetches.Get(id).why.code(), absl::StatusCode::kUnavailable)
      << node->fetches.Get(id).why;
  EXPECT_TRUE(WaitUntil([&] { return node->IsIdle(); }));
}

// T39: a peer that accepts and says nothing; one attempt for each pause however many wait.
TEST_F(Timing, ConnectHasADeadlineAndAPause) {
  const std::unique_ptr<Node> node = MakeNode();
  RawPeer peer(inproc::MakeTransport(hub_));
  std::vector<HandoffId> ids;
  for (int i = 0; i < 100; ++i) {
    ids.push_back(HandoffId::Make());
    ASSERT_TRUE(FetchFrom(*node, peer, ids.back()).ok());
  }
  ASSERT_TRUE(peer.Until([&] { return node->service->stats().fetches == 100; }));
  EXPECT_EQ(node->service->stats().connects, 1u);
  clock_.Advance(milliseconds(1010));
  for (const HandoffId& id : ids) {
    ASSERT_TRUE(node->fetches.WaitEnd(id));
    EXPECT_EQ(node->fetches.Get(id).why.code(), absl::StatusCode::kUnavailable);
  }

  const HandoffId early = HandoffId::Make();
  ASSERT_TRUE(FetchFrom(*node, peer, early).ok());
  ASSERT_TRUE(node->fetches.WaitEnd(early));
  EXPECT_EQ(node->service->stats().connects, 1u);

  clock_.Advance(milliseconds(60));
  const HandoffId later = HandoffId::Make();
  ASSERT_TRUE(FetchFrom(*node, peer, later).ok());
  ASSERT_TRUE(WaitUntil([&] { return node->service->stats().connects == 2; }));
  EXPECT_EQ(node->fetches.Get(later).calls(), 0);
}

// T39: a hundred requests at a time, before, during and after each pause, for a peer that never
// answers: one attempt for each pause, and the pauses double.
TEST_F(Timing, AStormOfRequestsMakesOneAttemptForEachPause) {
  const std::unique_ptr<Node> node = MakeNode();
  const TransferTimes& times = node->options.times;
  RawPeer peer(inproc::MakeTransport(hub_));
  const auto ask = [&] {
    std::vector<HandoffId> ids;
    for (int i = 0; i < 100; ++i) {
      ids.push_back(HandoffId::Make());
      EXPECT_TRUE(FetchFrom(*node, peer, ids.back()).ok());
    }
    return ids;
  };
  const auto expect_unavailable = [&](const std::vector<HandoffId>& ids) {
    for (const HandoffId& id : ids) {
      ASSERT_TRUE(node->fetches.WaitEnd(id));
      EXPECT_EQ(node->fetches.Get(id).why.code(), absl::StatusCode::kUnavailable);
    }
  };
  constexpr std::uint64_t kAttempts = 8;
  Duration pause = times.reconnect_min;
  for (std::uint64_t attempt = 1; attempt <= kAttempts; ++attempt) {
    SCOPED_TRACE(attempt);
    const std::vector<HandoffId> waiting = ask();
    ASSERT_TRUE(peer.Until([&] { return node->service->stats().fetches == 100; }));
    EXPECT_EQ(node->service->stats().connects, attempt);
    clock_.Advance(times.connect);
    expect_unavailable(waiting);
    expect_unavailable(ask());
    clock_.Advance(pause - milliseconds(1));
    expect_unavailable(ask());
    EXPECT_EQ(node->service->stats().connects, attempt);
    clock_.Advance(milliseconds(1));
    pause = std::min(2 * pause, times.reconnect_max);
  }
  EXPECT_EQ(pause, times.reconnect_max);
  EXPECT_TRUE(WaitUntil([&] { return node->IsIdle(); }));
}

// T38: an hour without traffic, then a handoff as if nothing had been.
TEST_F(Timing, IdleConnectionsStayUsable) {
  const std::unique_ptr<Node> prefill = MakeNode();
  const std::unique_ptr<Node> decode = MakeNode();
  for (int round = 0; round < 3; ++round) {
    const HandoffId id = HandoffId::Make();
    ASSERT_TRUE(prefill->Offer(id, *decode, Scattered(4, 64, 7)).ok());
    prefill->ReadyAll(id, 4);
    ASSERT_TRUE(decode->Fetch(id, *prefill, MapFrom(0, Scattered(4, 64, 11)), 1, seconds(60)).ok());
    ASSERT_TRUE(decode->fetches.WaitEnd(id));
    EXPECT_EQ(decode->fetches.Get(id).landed, 1) << decode->fetches.Get(id).why;
    ASSERT_TRUE(prefill->offers.WaitEnd(id));
    clock_.Advance(std::chrono::hours(1));
  }
  EXPECT_EQ(decode->service->stats().connects, 1u);
}

// F39, T09, and the reason for quarantine: the fetch is cancelled while UCX may still write. The
// event comes at once, the pin goes only after the connection is down, and then nothing is written
// any more, however late the sender wakes.
TEST_F(Timing, CancelledMemoryIsHeldUntilTheTransportLetsGo) {
  const std::unique_ptr<Node> node = MakeNode(ucx::MakeTransport({}));
  RawPeer peer(ucx::MakeTransport({}));
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(FetchFrom(*node, peer, id).ok());
  Welcome(peer);
  const std::vector<std::byte> payload(4 * 5 * 1040, std::byte{0x77});
  ASSERT_TRUE(peer.Say(peer.accepted[0],
                       wire::Data{.handoff = id,
                                  .epoch = 1,
                                  .round = 1,
                                  .first_layer = 0,
                                  .layer_count = 5,
                                  .crc32c = Crc32c({reinterpret_cast<const char*>(payload.data()),
                                                    payload.size()}),
                                  .blocks = {0, 1, 2, 3}},
                       payload)
                  .ok());
  // The receiver has named its memory, and the sender does not go on.
  ASSERT_TRUE(WaitUntil([&] { return node->service->stats().receiving == 1; }));
  node->service->CancelFetch(id);
  ASSERT_TRUE(node->fetches.WaitEnd(id));
  EXPECT_EQ(node->fetches.Get(id).why.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(WaitUntil([&] { return node->service->stats().quarantined_blocks == 4; }));
  EXPECT_EQ(node->pins, 1);
  clock_.Advance(milliseconds(500));
  EXPECT_FALSE(WaitUntil([&] { return node->pins == 0; }, milliseconds(30)));

  clock_.Advance(milliseconds(200));

  EXPECT_TRUE(
      WaitUntil([&] { return node->pins == 0 && node->service->stats().quarantined_blocks == 0; }));
  for (std::uint32_t i = 0; i < 64; ++i) {
    std::memset(node->pool.block(BlockId(i)), 0xc5, node->pool.layout().block_bytes());
  }
  EXPECT_TRUE(StaysSo(peer, [&] {
    for (std::uint32_t i = 0; i < 64; ++i) {
      if (!node->pool.IsUntouched(BlockId(i))) {
        return false;
      }
    }
    return true;
  }));
}

// No spinning: a service with a connection and nothing to do costs next to no processor time.
TEST_F(Timing, IdleServicesSleep) {
  Node prefill(ucx::MakeTransport({}));
  Node decode(ucx::MakeTransport({}));
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(prefill.Offer(id, decode, Scattered(4, 64, 7)).ok());
  prefill.ReadyAll(id, 4);
  ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, Scattered(4, 64, 11))).ok());
  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  ASSERT_TRUE(prefill.offers.WaitEnd(id));
  const auto cpu_ms = [] {
    timespec used{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) * 1e-6;
  };
  const double before = cpu_ms();
  EXPECT_FALSE(WaitUntil([] { return false; }, milliseconds(400)));
  EXPECT_LT(cpu_ms() - before, 40);
}

}  // namespace
}  // namespace baton
