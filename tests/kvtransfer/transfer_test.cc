#include <gtest/gtest.h>

#include <thread>

#include "tests/kvtransfer/test_transports.h"

namespace baton {
namespace {

// Every behaviour here holds for every transport.
class Transfer : public testing::TestWithParam<std::string> {
 protected:
  NodeTransport Factory() {
    constexpr std::string_view kFaulty = "faulty_";
    const std::string name = GetParam();
    if (!name.starts_with(kFaulty)) {
      return transports_.Make(name);
    }
    NodeTransport transport = transports_.Make(name.substr(kFaulty.size()));
    // Late and overtaken pieces, to which nothing may be sensitive.
    transport.around = [](TransportFactory inner) {
      const auto delay = [](wire::MessageType type) {
        return faulty::Fault{
            .action = faulty::FaultAction::kDelay, .type = type, .first = 1, .count = 2};
      };
      return faulty::MakeTransport(std::move(inner), {delay(wire::MessageType::kData)});
    };
    return transport;
  }
  void SetUp() override {
    if (GetParam() == "rdma" && !ucx::FindRdma().why.empty()) {
      GTEST_SKIP() << ucx::FindRdma().why << ": tests/rdma runs this on a machine that has one";
    }
  }
  std::string Carrier() const {
    const std::string name = GetParam();
    return TestTransports::NameInStats(name.substr(name.starts_with("faulty_") ? 7 : 0));
  }

  TestTransports transports_;
};

TEST_P(Transfer, MovesScatteredBlocksByteForByte) {
  Node prefill(Factory());
  Node decode(Factory());
  ASSERT_TRUE(prefill.failure.ok()) << prefill.failure;
  const HandoffId id = HandoffId::Make();
  const std::vector<BlockId> sources = Scattered(20, 64, 7);
  const std::vector<BlockId> destinations = Scattered(20, 64, 11);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    prefill.pool.Fill(sources[i], i);
  }

  ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
  prefill.ReadyAll(id, 20);
  ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, destinations)).ok());

  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  EXPECT_EQ(decode.fetches.Get(id).landed, 1) << decode.fetches.Get(id).why;
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    EXPECT_TRUE(decode.pool.Holds(destinations[i], i)) << "block " << i;
  }
  const FetchStats stats = decode.fetches.Get(id).stats;
  EXPECT_EQ(stats.bytes, 20 * decode.pool.layout().block_bytes());
  EXPECT_EQ(stats.transport, Carrier());
  EXPECT_EQ(stats.refetched_blocks, 0);
  EXPECT_LE(stats.requested, stats.first_byte);
  EXPECT_LE(stats.first_byte, stats.last_byte);
  EXPECT_GT(stats.receiving, Duration::zero());
  EXPECT_LE(stats.receiving, stats.last_byte - stats.first_byte);
  ASSERT_TRUE(prefill.offers.WaitEnd(id));
  EXPECT_EQ(prefill.offers.Get(id).state, PrefillHandoffState::kReleased);
  EXPECT_EQ(prefill.offers.Get(id).pins_alive, 0);
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
}

// T16, B45, F41: the decode side holds the first k blocks already; only the rest moves, each to its
// place.
TEST_P(Transfer, MovesOnlyTheBlocksThatAreMissing) {
  Node prefill(Factory());
  Node decode(Factory());
  constexpr int kBlocks = 9;
  const std::vector<BlockId> sources = Scattered(kBlocks, 64, 7);
  for (int i = 0; i < kBlocks; ++i) {
    prefill.pool.Fill(sources[static_cast<std::size_t>(i)], static_cast<std::uint64_t>(i));
  }
  for (int held = 1; held < kBlocks; ++held) {
    const std::vector<BlockId> destinations = Scattered(kBlocks, 64, 11);
    for (const BlockId block : destinations) {
      std::memset(decode.pool.block(block), 0xc5, decode.pool.layout().block_bytes());
    }
    const HandoffId id = HandoffId::Make();
    ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
    prefill.ReadyAll(id, kBlocks);
    ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(held, destinations)).ok());
    ASSERT_TRUE(decode.fetches.WaitEnd(id));

    EXPECT_EQ(decode.fetches.Get(id).stats.bytes,
              static_cast<std::size_t>(kBlocks - held) * decode.pool.layout().block_bytes());
    for (int i = 0; i < kBlocks; ++i) {
      const BlockId block = destinations[static_cast<std::size_t>(i)];
      EXPECT_TRUE(i < held ? decode.pool.IsUntouched(block)
                           : decode.pool.Holds(block, static_cast<std::uint64_t>(i)))
          << "held " << held << " block " << i;
    }
    ASSERT_TRUE(prefill.offers.WaitEnd(id));
    EXPECT_EQ(prefill.offers.Get(id).state, PrefillHandoffState::kReleased);
  }
}

// A fetch of blocks out of order and with holes.
TEST_P(Transfer, MovesAnyChoiceOfBlocks) {
  Node prefill(Factory());
  Node decode(Factory());
  const HandoffId id = HandoffId::Make();
  const std::vector<BlockId> sources = Scattered(16, 64, 7);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    prefill.pool.Fill(sources[i], i);
  }
  const std::vector<BlockMapping> wanted = {
      {14, BlockId(1)}, {0, BlockId(63)}, {7, BlockId(0)}, {8, BlockId(30)}, {3, BlockId(31)}};
  ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
  prefill.ReadyAll(id, 16);
  ASSERT_TRUE(decode.Fetch(id, prefill, wanted).ok());

  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  EXPECT_EQ(decode.fetches.Get(id).landed, 1) << decode.fetches.Get(id).why;
  for (const BlockMapping& mapping : wanted) {
    EXPECT_TRUE(
        decode.pool.Holds(mapping.destination, static_cast<std::uint64_t>(mapping.source_index)));
  }
  EXPECT_TRUE(decode.pool.IsUntouched(BlockId(2)));
}

// Layers of blocks become ready in any order, some before the fetch, some twice, the last of them
// late.
TEST_P(Transfer, ServesLayersInTheOrderTheyBecomeReady) {
  Node prefill(Factory());
  Node decode(Factory());
  const HandoffId id = HandoffId::Make();
  constexpr int kBlocks = 12;
  const std::vector<BlockId> sources = Scattered(kBlocks, 64, 7);
  const std::vector<BlockId> destinations = Scattered(kBlocks, 64, 11);
  for (int i = 0; i < kBlocks; ++i) {
    prefill.pool.Fill(sources[static_cast<std::size_t>(i)], static_cast<std::uint64_t>(i));
  }
  ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
  prefill.service->MarkReady(
      id, {.first_block = 8, .block_count = 4, .first_layer = 3, .layer_count = 2});
  ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, destinations)).ok());
  ASSERT_TRUE(WaitUntil([&] { return decode.service->stats().messages_received > 0; }));
  for (const int layer : {4, 0, 2, 1, 3}) {
    prefill.service->MarkReady(
        id, {.first_block = 0, .block_count = 7, .first_layer = layer, .layer_count = 1});
    prefill.service->MarkReady(
        id, {.first_block = 4, .block_count = 8, .first_layer = layer, .layer_count = 1});
  }
  // All has been sent and the engine has not said that it is done: the handoff still ends.
  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  EXPECT_EQ(decode.fetches.Get(id).landed, 1);
  for (int i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(decode.pool.Holds(destinations[static_cast<std::size_t>(i)],
                                  static_cast<std::uint64_t>(i)));
  }
  ASSERT_TRUE(prefill.offers.WaitEnd(id));
  EXPECT_EQ(prefill.offers.Get(id).state, PrefillHandoffState::kReleased);
  prefill.service->FinishComputing(id);
}

// T19: nothing is read before it is ready.
TEST_P(Transfer, NothingLeavesBeforeItIsReady) {
  Node prefill(Factory());
  Node decode(Factory());
  const HandoffId id = HandoffId::Make();
  const std::vector<BlockId> sources = Scattered(4, 64, 7);
  ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, Scattered(4, 64, 11))).ok());
  ASSERT_TRUE(WaitUntil([&] { return prefill.service->stats().parked_fetches == 1; }));

  ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
  ASSERT_TRUE(WaitUntil([&] { return prefill.service->stats().parked_fetches == 0; }));
  EXPECT_EQ(prefill.service->stats().messages_sent, 0u);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    prefill.pool.Fill(sources[i], i);
  }
  prefill.ReadyAll(id, 4);

  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(decode.pool.Holds(Scattered(4, 64, 11)[i], i));
  }
}

// B40: many at once, each gets its own bytes.
TEST_P(Transfer, SixtyFourHandoffsAtOnceDoNotMix) {
  constexpr int kHandoffs = 64;
  constexpr int kEach = 4;
  Node prefill(Factory(), nullptr, SmallLayout(), kHandoffs * kEach);
  Node decode(Factory(), nullptr, SmallLayout(), kHandoffs * kEach);
  std::vector<HandoffId> ids;
  const std::vector<BlockId> sources = Scattered(kHandoffs * kEach, kHandoffs * kEach, 37);
  const std::vector<BlockId> destinations = Scattered(kHandoffs * kEach, kHandoffs * kEach, 91);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    prefill.pool.Fill(sources[i], i);
  }
  for (std::size_t h = 0; h < kHandoffs; ++h) {
    ids.push_back(HandoffId::Make());
    const auto mine = [&](const std::vector<BlockId>& all) {
      return std::vector<BlockId>(all.begin() + static_cast<std::ptrdiff_t>(h * kEach),
                                  all.begin() + static_cast<std::ptrdiff_t>((h + 1) * kEach));
    };
    ASSERT_TRUE(decode.Fetch(ids[h], prefill, MapFrom(0, mine(destinations))).ok());
    ASSERT_TRUE(prefill.Offer(ids[h], decode, mine(sources)).ok());
  }
  for (const HandoffId& id : ids) {
    prefill.ReadyAll(id, kEach);
  }
  for (const HandoffId& id : ids) {
    ASSERT_TRUE(decode.fetches.WaitEnd(id));
    EXPECT_EQ(decode.fetches.Get(id).landed, 1);
    ASSERT_TRUE(prefill.offers.WaitEnd(id));
    EXPECT_EQ(prefill.offers.Get(id).state, PrefillHandoffState::kReleased);
  }
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    EXPECT_TRUE(decode.pool.Holds(destinations[i], i)) << i;
  }
  EXPECT_EQ(decode.service->stats().connects, 1u);
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
}

// F21, T12: the decode side cancels in each of its states; the prefill side is free at once, and a
// retry works.
TEST_P(Transfer, DecodeSideMayCancelInEveryState) {
  Node prefill(Factory());
  Node decode(Factory());
  const std::vector<BlockId> sources = Scattered(20, 64, 7);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    prefill.pool.Fill(sources[i], i);
  }
  const std::vector<std::function<void(HandoffId)>> until_state = {
      [](HandoffId) {},  // as soon as posted
      [&](HandoffId) {
        ASSERT_TRUE(WaitUntil([&] { return prefill.service->stats().parked_fetches == 1; }));
      },
      [&](HandoffId id) {
        const std::uint64_t before = decode.service->stats().messages_received;
        ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
        prefill.service->MarkReady(
            id, {.first_block = 0, .block_count = 6, .first_layer = 0, .layer_count = 5});
        ASSERT_TRUE(WaitUntil([&] { return decode.service->stats().messages_received > before; }));
      },
      [&](HandoffId id) {
        ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
        prefill.ReadyAll(id, 20);
      },
  };
  for (std::size_t state = 0; state < until_state.size(); ++state) {
    const HandoffId id = HandoffId::Make();
    ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, Scattered(20, 64, 11))).ok());
    until_state[state](id);
    decode.service->CancelFetch(id);

    ASSERT_TRUE(decode.fetches.WaitEnd(id));
    EXPECT_EQ(decode.fetches.Get(id).calls(), 1);
    if (decode.fetches.Get(id).failed == 1) {
      EXPECT_EQ(decode.fetches.Get(id).why.code(), absl::StatusCode::kCancelled);
    }
    if (state < 2) {
      // The offer comes after the cancellation and ends at once.
      ASSERT_TRUE(WaitUntil([&] { return prefill.service->stats().parked_fetches == 0; }));
      ASSERT_TRUE(WaitUntil([&] { return decode.IsIdle(); }));
      if (state == 1) {
        ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
        ASSERT_TRUE(prefill.offers.WaitEnd(id));
        EXPECT_EQ(prefill.offers.Get(id).state, PrefillHandoffState::kCancelled);
      }
    } else {
      ASSERT_TRUE(prefill.offers.WaitEnd(id));
      const PrefillHandoffState end = prefill.offers.Get(id).state;
      if (decode.fetches.Get(id).landed == 1) {
        EXPECT_EQ(end, PrefillHandoffState::kReleased);
      } else if (GetParam().find("mapped") != std::string::npos || GetParam() == "rdma") {
        // What was read counts once the other side has confirmed its lease: a cancellation may come
        // when that has been asked for, and cross the confirmation.
        EXPECT_TRUE(end == PrefillHandoffState::kCancelled || end == PrefillHandoffState::kReleased)
            << ToString(end);
      } else {
        EXPECT_EQ(end, PrefillHandoffState::kCancelled);
      }
      EXPECT_EQ(prefill.offers.Get(id).calls, 1);
    }
    EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }))
        << "state " << state;
  }
}

// The prefill side withdraws in each of its states; the decode side hears why.
TEST_P(Transfer, PrefillSideMayWithdrawInEveryState) {
  Node prefill(Factory());
  Node decode(Factory());
  const std::vector<BlockId> sources = Scattered(20, 64, 7);
  for (int state = 0; state < 3; ++state) {
    const HandoffId id = HandoffId::Make();
    ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
    if (state > 0) {
      const std::uint64_t before = decode.service->stats().messages_received;
      ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, Scattered(20, 64, 11))).ok());
      prefill.service->MarkReady(
          id, {.first_block = 0, .block_count = 6, .first_layer = 0, .layer_count = 5});
      ASSERT_TRUE(WaitUntil([&] { return decode.service->stats().messages_received > before; }));
    }
    const absl::Status why =
        state == 2 ? absl::CancelledError("client left") : absl::InternalError("engine failed");
    prefill.service->Withdraw(id, why);

    ASSERT_TRUE(prefill.offers.WaitEnd(id));
    EXPECT_EQ(prefill.offers.Get(id).state,
              state == 2 ? PrefillHandoffState::kCancelled : PrefillHandoffState::kFailed);
    EXPECT_EQ(prefill.offers.Get(id).why, why);
    EXPECT_EQ(prefill.offers.Get(id).pins_alive, 0);
    if (state > 0) {
      ASSERT_TRUE(decode.fetches.WaitEnd(id));
      EXPECT_EQ(decode.fetches.Get(id).why.code(), why.code()) << decode.fetches.Get(id).why;
      const std::vector<int> whole_blocks = decode.fetches.Get(id).whole_blocks;
      EXPECT_TRUE(std::is_sorted(whole_blocks.begin(), whole_blocks.end()));
    }
    EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }))
        << "state " << state;
  }
}

// F1: whole blocks that landed before a failure are named, and are right.
TEST_P(Transfer, FailureNamesTheBlocksThatAreWhole) {
  Node prefill(Factory());
  Node decode(Factory());
  const HandoffId id = HandoffId::Make();
  const std::vector<BlockId> sources = Scattered(10, 64, 7);
  const std::vector<BlockId> destinations = Scattered(10, 64, 11);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    prefill.pool.Fill(sources[i], i);
  }
  ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
  ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(2, destinations)).ok());
  prefill.service->MarkReady(
      id, {.first_block = 0, .block_count = 5, .first_layer = 0, .layer_count = 5});
  prefill.service->MarkReady(
      id, {.first_block = 5, .block_count = 5, .first_layer = 0, .layer_count = 4});
  const std::size_t expected = (3 * 5 + 5 * 4) * decode.pool.layout().layer_bytes;
  ASSERT_TRUE(WaitUntil([&] { return decode.service->stats().bytes_received == expected; }));
  prefill.service->Withdraw(id, absl::InternalError("engine failed"));

  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  EXPECT_EQ(decode.fetches.Get(id).whole_blocks, (std::vector<int>{2, 3, 4}));
  for (const int block : decode.fetches.Get(id).whole_blocks) {
    const auto i = static_cast<std::size_t>(block);
    EXPECT_TRUE(decode.pool.Holds(destinations[i], i));
  }
}

// F23: the prefill side never gets anything ready.
TEST_P(Transfer, DeadlineEndsAFetchThatWaits) {
  Node prefill(Factory());
  Node decode(Factory());
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(prefill.Offer(id, decode, Scattered(4, 64, 7)).ok());
  ASSERT_TRUE(
      decode
          .Fetch(id, prefill, MapFrom(0, Scattered(4, 64, 11)), 1, std::chrono::milliseconds(1000))
          .ok());

  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  EXPECT_EQ(decode.fetches.Get(id).why.code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(prefill.offers.WaitEnd(id));
  EXPECT_EQ(prefill.offers.Get(id).state, PrefillHandoffState::kCancelled);
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
}

// The fetch is over before the two sides have greeted each other: the prefill side hears of it all
// the same, and does not wait for the lease.
TEST_P(Transfer, AFetchThatEndsBeforeTheGreetingEndsTheOfferToo) {
  for (int i = 0; i < 20; ++i) {
    Node prefill(Factory());
    Node decode(Factory());
    const HandoffId id = HandoffId::Make();
    ASSERT_TRUE(prefill.Offer(id, decode, Scattered(4, 64, 7)).ok());
    ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, Scattered(4, 64, 11))).ok());
    ASSERT_TRUE(WaitUntil([&] { return decode.service->stats().connects == 1; }));
    decode.service->CancelFetch(id);

    ASSERT_TRUE(decode.fetches.WaitEnd(id));
    ASSERT_TRUE(prefill.offers.WaitEnd(id));
    ASSERT_EQ(prefill.offers.Get(id).state, PrefillHandoffState::kCancelled) << i;
  }
}

// F36: peers whose KV bytes mean something else are refused, and both values are named.
TEST_P(Transfer, OtherLayoutsAreRefused) {
  Node prefill(Factory(), [](TransferOptions& options) { options.layout_fingerprint[0] = 0xab; });
  Node decode(Factory(), [](TransferOptions& options) { options.layout_fingerprint[0] = 0xcd; });
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, Scattered(4, 64, 11))).ok());

  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  const absl::Status why = decode.fetches.Get(id).why;
  EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition) << why;
  EXPECT_NE(why.message().find("ours ab00"), absl::string_view::npos) << why;
  EXPECT_NE(why.message().find("theirs cd00"), absl::string_view::npos) << why;
}

// F8, T30: another run of the process answers at the address that was known.
TEST_P(Transfer, AnotherInstanceAtTheAddressIsRefused) {
  Node prefill(Factory());
  Node decode(Factory());
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(decode.service
                  ->Fetch({.id = id,
                           .epoch = 1,
                           .address = prefill.service->address(),
                           .peer = InstanceId::Make(),
                           .blocks = MapFrom(0, Scattered(4, 64, 11)),
                           .pin = std::make_unique<CountingPin>(decode.pins),
                           .deadline = Clock::System().Now() + kTestPatience,
                           .sink = &decode.fetches})
                  .ok());
  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  EXPECT_EQ(decode.fetches.Get(id).why.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(WaitUntil([&] { return decode.IsIdle(); }));
}

TEST_P(Transfer, StaleEpochsAreToldAtOnce) {
  Node prefill(Factory());
  Node decode(Factory());
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(prefill.Offer(id, decode, Scattered(4, 64, 7), /*epoch=*/2).ok());
  ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, Scattered(4, 64, 11)), /*epoch=*/1).ok());

  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  EXPECT_EQ(decode.fetches.Get(id).why.code(), absl::StatusCode::kAborted)
      << decode.fetches.Get(id).why;
  // The other side may have heard of it before the count is published.
  EXPECT_TRUE(WaitUntil(
      [&] { return prefill.service->stats().dropped_for(DropReason::kWrongEpoch) >= 1; }));
}

// Stopping with handoffs in every state: each sink hears exactly one end, no pin is left, the peer
// is told.
TEST_P(Transfer, StopEndsEverything) {
  Node prefill(Factory());
  Node decode(Factory());
  const std::vector<HandoffId> ids = {HandoffId::Make(), HandoffId::Make(), HandoffId::Make()};
  ASSERT_TRUE(prefill.Offer(ids[0], decode, Scattered(20, 64, 7)).ok());
  ASSERT_TRUE(decode.Fetch(ids[0], prefill, MapFrom(0, Scattered(20, 64, 11))).ok());
  prefill.ReadyAll(ids[0], 20);
  ASSERT_TRUE(prefill.Offer(ids[1], decode, Scattered(20, 64, 7)).ok());
  ASSERT_TRUE(decode.Fetch(ids[2], prefill, MapFrom(0, Scattered(20, 64, 11))).ok());
  ASSERT_TRUE(WaitUntil([&] { return prefill.service->stats().parked_fetches == 1; }));

  prefill.service->Stop(std::chrono::seconds(1));

  EXPECT_EQ(prefill.pins, 0);
  EXPECT_EQ(prefill.offers.Get(ids[0]).calls, 1);
  EXPECT_EQ(prefill.offers.Get(ids[1]).calls, 1);
  EXPECT_EQ(prefill.offers.Get(ids[1]).state, PrefillHandoffState::kFailed);
  EXPECT_FALSE(prefill.Offer(HandoffId::Make(), decode, Scattered(2, 64, 7)).ok());
  ASSERT_TRUE(decode.fetches.WaitEnd(ids[2]));
  EXPECT_EQ(decode.fetches.Get(ids[2]).why.code(), absl::StatusCode::kUnavailable)
      << decode.fetches.Get(ids[2]).why;
  ASSERT_TRUE(decode.fetches.WaitEnd(ids[0]));
  decode.service->Stop(std::chrono::seconds(1));
  EXPECT_EQ(decode.pins, 0);
  EXPECT_EQ(decode.fetches.Get(ids[0]).calls(), 1);
}

TEST_P(Transfer, BadRequestsAreRefusedBeforeTheyBegin) {
  Node prefill(Factory());
  Node decode(Factory());
  const HandoffId id = HandoffId::Make();
  EXPECT_EQ(prefill.Offer(id, decode, {BlockId(64)}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(prefill.Offer(id, decode, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode.Fetch(id, prefill, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode.Fetch(id, prefill, {{-1, BlockId(1)}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode.Fetch(id, prefill, {{0, BlockId(64)}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode.Fetch(id, prefill, {{0, BlockId(1)}, {0, BlockId(2)}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode.Fetch(id, prefill, {{0, BlockId(1)}, {1, BlockId(1)}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(prefill.pins + decode.pins, 0);

  ASSERT_TRUE(prefill.Offer(id, decode, {BlockId(1)}).ok());
  ASSERT_TRUE(prefill.Offer(id, decode, {BlockId(2)}).ok());
  ASSERT_TRUE(prefill.offers.WaitEnd(id));
  EXPECT_EQ(prefill.offers.Get(id).why.code(), absl::StatusCode::kAlreadyExists);
}

// A fetch that names blocks beyond the offer is a mistake of the worker's; it hears so at once.
TEST_P(Transfer, BlocksThatAreNotOfferedAreRefused) {
  Node prefill(Factory());
  Node decode(Factory());
  const HandoffId id = HandoffId::Make();
  ASSERT_TRUE(prefill.Offer(id, decode, Scattered(4, 64, 7)).ok());
  ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, Scattered(5, 64, 11))).ok());
  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  EXPECT_EQ(decode.fetches.Get(id).why.code(), absl::StatusCode::kInvalidArgument)
      << decode.fetches.Get(id).why;
  EXPECT_TRUE(
      WaitUntil([&] { return prefill.service->stats().dropped_for(DropReason::kBadBlocks) == 1; }));
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         Transfer,
                         testing::Values("inproc",
                                         "ucx",
                                         "grpc",
                                         "mapped",
                                         "mapped_ucx",
                                         "mapped_grpc",
                                         "faulty_inproc",
                                         "faulty_ucx",
                                         "faulty_grpc",
                                         "faulty_mapped"),
                         kTransportName);
INSTANTIATE_TEST_SUITE_P(Rdma, Transfer, testing::Values("rdma"), kTransportName);
INSTANTIATE_TEST_SUITE_P(DevicePools,
                         Transfer,
                         testing::Values("staged_inproc", "staged_ucx"),
                         kTransportName);

}  // namespace
}  // namespace baton
