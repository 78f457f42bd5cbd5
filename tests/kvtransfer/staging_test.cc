#include <gtest/gtest.h>

#include <random>

#include "kvtransfer/faulty/faulty_transport.h"
#include "kvtransfer/inproc/inproc_transport.h"
#include "kvtransfer/staged/slot_ring.h"
#include "kvtransfer/ucx/ucx_transport.h"
#include "tests/kvtransfer/raw_peer.h"

namespace baton {
namespace {

using faulty::FaultAction;

constexpr int kBlocks = 12;

// A node whose pool is on a device, and what its copies do.
struct DeviceNode {
  explicit DeviceNode(TransportFactory inner,
                      staged::StagingOptions slots = {.slot_bytes = 16 * 1024,
                                                      .send_slots = 2,
                                                      .receive_slots = 2},
                      const std::function<void(TransferOptions&)>& adjust = nullptr,
                      int blocks = 64)
      : options(slots),
        node({staged::MakeTransport(std::move(inner), MakeFakeCopier(copies), slots, stats),
              MemoryKind::kCudaDevice},
             adjust,
             SmallLayout(),
             blocks) {
    // What a pin guards is never given back while a copy may touch it.
    node.on_pin_drop = [copies = copies] { EXPECT_EQ(copies->under_way, 0); };
  }

  bool SlotsAreBack() const {
    return stats->free_send_slots == options.send_slots &&
           stats->free_receive_slots == options.receive_slots && stats->waiting == 0 &&
           stats->copying == 0;
  }
  bool IsIdle() const { return node.IsIdle() && SlotsAreBack() && copies->misplaced == 0; }

  staged::StagingOptions options;
  std::shared_ptr<FakeCopies> copies = std::make_shared<FakeCopies>();
  std::shared_ptr<staged::StagingStats> stats = std::make_shared<staged::StagingStats>();
  Node node;
};

class Staging : public testing::TestWithParam<std::string> {
 protected:
  Staging() { ucx::SetDefaults(); }

  TransportFactory Plain() {
    return GetParam() == "ucx" ? ucx::MakeTransport({}) : inproc::MakeTransport(hub_);
  }

  // Offers kBlocks filled blocks and fetches them.
  HandoffId Begin(Node& prefill, Node& decode, Duration patience = kTestPatience) {
    const HandoffId id = HandoffId::Make();
    for (std::size_t i = 0; i < kBlocks; ++i) {
      prefill.pool.Fill(sources_[i], i);
    }
    EXPECT_TRUE(prefill.Offer(id, decode, sources_).ok());
    EXPECT_TRUE(decode.Fetch(id, prefill, MapFrom(0, destinations_), 1, patience).ok());
    prefill.ReadyAll(id, kBlocks);
    return id;
  }
  void ExpectLanded(Node& decode, HandoffId id) {
    ASSERT_TRUE(decode.fetches.WaitEnd(id));
    EXPECT_EQ(decode.fetches.Get(id).landed, 1) << decode.fetches.Get(id).why;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      EXPECT_TRUE(decode.pool.Holds(destinations_[i], i)) << "block " << i;
    }
  }

  const std::vector<BlockId> sources_ = Scattered(kBlocks, 64, 7);
  const std::vector<BlockId> destinations_ = Scattered(kBlocks, 64, 11);
  std::shared_ptr<inproc::Hub> hub_ = inproc::MakeHub();
};

// What the fingerprints of layouts refuse between workers is all the same to the bytes.
TEST_P(Staging, MovesBlocksBetweenAnyKindsOfMemory) {
  for (const bool prefill_on_device : {true, false}) {
    for (const bool decode_on_device : {true, false}) {
      if (!prefill_on_device && !decode_on_device) {
        continue;
      }
      DeviceNode device_prefill(Plain());
      DeviceNode device_decode(Plain());
      Node host_prefill(Plain());
      Node host_decode(Plain());
      Node& prefill = prefill_on_device ? device_prefill.node : host_prefill;
      Node& decode = decode_on_device ? device_decode.node : host_decode;
      const HandoffId id = Begin(prefill, decode);
      ExpectLanded(decode, id);
      // Three blocks fill a message and a slot.
      EXPECT_EQ(device_prefill.copies->to_host, prefill_on_device ? 4 : 0);
      EXPECT_EQ(device_decode.copies->to_device, decode_on_device ? 4 : 0);
      EXPECT_TRUE(prefill.offers.WaitEnd(id));
      EXPECT_EQ(prefill.offers.Get(id).state, PrefillHandoffState::kReleased);
      EXPECT_TRUE(WaitUntil([&] {
        return prefill.IsIdle() && decode.IsIdle() && device_prefill.IsIdle() &&
               device_decode.IsIdle();
      }));
    }
  }
}

TEST_P(Staging, MessagesMayFillManySlotsOrAPartOfOne) {
  for (const std::size_t slot_bytes : {1000, 1040, 5201, 7801, 100000}) {
    SCOPED_TRACE(testing::Message() << "slots of " << slot_bytes << " bytes");
    const staged::StagingOptions slots{
        .slot_bytes = slot_bytes, .send_slots = 17, .receive_slots = 16};
    DeviceNode prefill(Plain(), slots);
    DeviceNode decode(Plain(), slots);
    const HandoffId id = Begin(prefill.node, decode.node);
    ExpectLanded(decode.node, id);
    const int copies = 4 * static_cast<int>((3 * 5200 + slot_bytes - 1) / slot_bytes);
    EXPECT_EQ(prefill.copies->to_host, copies);
    EXPECT_EQ(decode.copies->to_device, copies);
    EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
  }
}

// Many handoffs both ways at once through one slot for each direction: everybody waits for
// everybody, and all arrive.
TEST_P(Staging, FullRingsHoldUpAndDoNotLock) {
  constexpr int kHandoffs = 10;
  const staged::StagingOptions slots{.slot_bytes = 16 * 1024, .send_slots = 1, .receive_slots = 1};
  DeviceNode a(Plain(), slots, nullptr, 2 * kHandoffs * kBlocks);
  DeviceNode b(Plain(), slots, nullptr, 2 * kHandoffs * kBlocks);
  a.node.on_pin_drop = b.node.on_pin_drop = nullptr;  // others' copies are under way
  std::vector<HandoffId> ids;
  const auto blocks = [](int handoff, bool fetched) {
    std::vector<BlockId> list;
    for (int i = 0; i < kBlocks; ++i) {
      list.emplace_back(
          static_cast<std::uint32_t>(((fetched ? kHandoffs : 0) + handoff) * kBlocks + i));
    }
    return list;
  };
  const auto seed = [](int handoff, int block, const Node& of, const Node& first) {
    return static_cast<std::uint64_t>((handoff * kBlocks + block) * 2 + (&of == &first ? 1 : 0));
  };
  for (int h = 0; h < kHandoffs; ++h) {
    for (const auto& [prefill, decode] :
         {std::pair(&a.node, &b.node), std::pair(&b.node, &a.node)}) {
      const HandoffId id = HandoffId::Make();
      ids.push_back(id);
      for (int i = 0; i < kBlocks; ++i) {
        prefill->pool.Fill(blocks(h, false)[static_cast<std::size_t>(i)],
                           seed(h, i, *prefill, a.node));
      }
      ASSERT_TRUE(prefill->Offer(id, *decode, blocks(h, false)).ok());
      ASSERT_TRUE(decode->Fetch(id, *prefill, MapFrom(0, blocks(h, true))).ok());
      prefill->ReadyAll(id, kBlocks);
    }
  }
  for (int h = 0; h < kHandoffs; ++h) {
    for (const auto& [prefill, decode] :
         {std::pair(&a.node, &b.node), std::pair(&b.node, &a.node)}) {
      const HandoffId id = ids[static_cast<std::size_t>(2 * h + (decode == &a.node ? 1 : 0))];
      ASSERT_TRUE(decode->fetches.WaitEnd(id));
      EXPECT_EQ(decode->fetches.Get(id).landed, 1) << decode->fetches.Get(id).why;
      EXPECT_EQ(decode->fetches.Get(id).stats.refetched_blocks, 0);
      for (int i = 0; i < kBlocks; ++i) {
        EXPECT_TRUE(decode->pool.Holds(blocks(h, true)[static_cast<std::size_t>(i)],
                                       seed(h, i, *prefill, a.node)))
            << "handoff " << h << " block " << i;
      }
    }
  }
  EXPECT_TRUE(WaitUntil([&] { return a.IsIdle() && b.IsIdle(); }));
  EXPECT_LE(a.copies->most_under_way, 2);
  EXPECT_LE(b.copies->most_under_way, 2);
}

// The next message is copied while the last is sent: with the receiver's copies held nothing is
// received for good, and yet the sender fills its slots as those before are taken.
TEST_P(Staging, CopiesRunAheadOfSending) {
  DeviceNode prefill(Plain(), {.slot_bytes = 16 * 1024, .send_slots = 2, .receive_slots = 1});
  DeviceNode decode(Plain(), {.slot_bytes = 16 * 1024, .send_slots = 2, .receive_slots = 1});
  decode.copies->hold = true;
  const HandoffId id = Begin(prefill.node, decode.node);
  // One message in the receiver's slot, two in the sender's, the fourth in line.
  EXPECT_TRUE(WaitUntil([&] {
    return decode.copies->under_way == 1 && prefill.copies->to_host == 3 &&
           prefill.stats->free_send_slots == 0 && prefill.stats->waiting == 1 &&
           decode.stats->waiting >= 1;
  })) << prefill.copies->to_host;
  decode.copies->hold = false;
  ExpectLanded(decode.node, id);
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
}

TEST_P(Staging, FetchIsCancelledWhileItsBlocksAreWritten) {
  DeviceNode prefill(Plain());
  DeviceNode decode(Plain());
  decode.copies->hold = true;
  const HandoffId id = Begin(prefill.node, decode.node);
  ASSERT_TRUE(WaitUntil([&] { return decode.copies->under_way == 2; }));
  decode.node.service->CancelFetch(id);
  ASSERT_TRUE(decode.node.fetches.WaitEnd(id));
  EXPECT_EQ(decode.node.fetches.Get(id).why.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(
      WaitUntil([&] { return decode.node.service->stats().quarantined_blocks == kBlocks; }));
  EXPECT_EQ(decode.node.pins, 1);
  decode.copies->hold = false;
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }))
      << decode.node.pins << decode.stats->free_receive_slots;
}

TEST_P(Staging, OfferIsWithdrawnWhileItsBlocksAreRead) {
  DeviceNode prefill(Plain());
  DeviceNode decode(Plain());
  prefill.copies->hold = true;
  const HandoffId id = Begin(prefill.node, decode.node);
  ASSERT_TRUE(WaitUntil([&] { return prefill.copies->under_way == 2; }));
  prefill.node.service->Withdraw(id, absl::CancelledError("the client left"));
  ASSERT_TRUE(decode.node.fetches.WaitEnd(id));
  EXPECT_EQ(decode.node.fetches.Get(id).why.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(
      WaitUntil([&] { return prefill.node.service->stats().quarantined_blocks == kBlocks; }));
  EXPECT_EQ(prefill.node.pins, 1);
  EXPECT_EQ(prefill.node.offers.Get(id).calls, 0);
  prefill.copies->hold = false;
  ASSERT_TRUE(prefill.node.offers.WaitEnd(id));
  EXPECT_EQ(prefill.node.offers.Get(id).state, PrefillHandoffState::kCancelled);
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
}

// The connection is over for the handler only when the copies are.
TEST_P(Staging, PeerDiesWhileBlocksAreWritten) {
  auto prefill = std::make_unique<DeviceNode>(Plain());
  DeviceNode decode(Plain());
  decode.copies->hold = true;
  const HandoffId id = Begin(prefill->node, decode.node);
  ASSERT_TRUE(WaitUntil([&] { return decode.copies->under_way == 2; }));
  prefill.reset();
  // The peer said that it stops, which ends the fetch; the blocks are still being written.
  ASSERT_TRUE(decode.node.fetches.WaitEnd(id));
  EXPECT_EQ(decode.node.fetches.Get(id).failed, 1);
  EXPECT_TRUE(decode.node.fetches.Get(id).whole_blocks.empty());
  EXPECT_EQ(decode.node.pins, 1);
  EXPECT_EQ(decode.node.service->stats().connections, 1);
  decode.copies->hold = false;
  EXPECT_TRUE(WaitUntil([&] { return decode.IsIdle(); }));
  EXPECT_TRUE(WaitUntil([&] { return decode.node.service->stats().connections == 0; }));
}

TEST_P(Staging, PeerDiesWhileBlocksAreRead) {
  DeviceNode prefill(Plain());
  auto decode = std::make_unique<DeviceNode>(Plain());
  prefill.copies->hold = true;
  const HandoffId id = Begin(prefill.node, decode->node);
  ASSERT_TRUE(WaitUntil([&] { return prefill.copies->under_way == 2; }));
  decode.reset();
  // It says that it stops, but the connection may break before that is heard.
  prefill.node.service->Withdraw(id, absl::CancelledError("the peer is gone"));
  ASSERT_TRUE(
      WaitUntil([&] { return prefill.node.service->stats().quarantined_blocks == kBlocks; }));
  EXPECT_EQ(prefill.node.pins, 1);
  prefill.copies->hold = false;
  ASSERT_TRUE(prefill.node.offers.WaitEnd(id));
  EXPECT_EQ(prefill.node.offers.Get(id).state, PrefillHandoffState::kCancelled);
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle(); }));
}

// Stopping does not wait for copies, but gives memory back only after them.
TEST_P(Staging, StopsWhileCopiesAreUnderWay) {
  for (const bool reading : {true, false}) {
    DeviceNode prefill(Plain());
    DeviceNode decode(Plain());
    DeviceNode& stopped = reading ? prefill : decode;
    stopped.copies->hold = true;
    Begin(prefill.node, decode.node);
    ASSERT_TRUE(WaitUntil([&] { return stopped.copies->under_way == 2; }));
    stopped.node.service->Stop(std::chrono::milliseconds(50));
    EXPECT_EQ(stopped.copies->under_way, 0);
    EXPECT_EQ(stopped.node.pins, 0);
  }
}

// A lost device ends handoffs with an error, and nothing is kept.
TEST_P(Staging, CopiesThatFailEndTheHandoff) {
  struct Case {
    const char* name;
    bool reading;
    bool start;
  };
  for (const Case& failing :
       {Case{"reading does not start", true, true}, Case{"reading fails", true, false},
        Case{"writing does not start", false, true}, Case{"writing fails", false, false}}) {
    SCOPED_TRACE(failing.name);
    DeviceNode prefill(Plain());
    DeviceNode decode(Plain());
    FakeCopies& copies = failing.reading ? *prefill.copies : *decode.copies;
    (failing.start ? copies.fail_to_start : copies.fail) = 1000;
    const HandoffId id = Begin(prefill.node, decode.node);
    ASSERT_TRUE(decode.node.fetches.WaitEnd(id));
    EXPECT_EQ(decode.node.fetches.Get(id).failed, 1);
    EXPECT_EQ(decode.node.fetches.Get(id).why.code(), absl::StatusCode::kUnavailable)
        << decode.node.fetches.Get(id).why;
    EXPECT_TRUE(decode.node.fetches.Get(id).whole_blocks.empty());
    prefill.node.service->Withdraw(id, absl::CancelledError("tried elsewhere"));
    EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
  }
}

// A copy that failed once costs a fetch, not the handoff.
TEST_P(Staging, WhatCouldNotBeWrittenIsFetchedAgain) {
  DeviceNode prefill(Plain());
  DeviceNode decode(Plain());
  decode.copies->fail = 1;
  const HandoffId id = Begin(prefill.node, decode.node);
  ExpectLanded(decode.node, id);
  EXPECT_EQ(decode.node.fetches.Get(id).stats.refetched_blocks, 3);
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
}

// Damage on the way is found in the slot: the device never sees it.
TEST_P(Staging, DamagedBytesDoNotReachTheDevice) {
  DeviceNode prefill(faulty::MakeTransport(Plain(), {{.action = FaultAction::kFlip,
                                                      .type = wire::MessageType::kData,
                                                      .first = 0,
                                                      .count = 1000}}));
  DeviceNode decode(Plain());
  const HandoffId id = Begin(prefill.node, decode.node);
  ASSERT_TRUE(decode.node.fetches.WaitEnd(id));
  EXPECT_EQ(decode.node.fetches.Get(id).why.code(), absl::StatusCode::kDataLoss)
      << decode.node.fetches.Get(id).why;
  EXPECT_EQ(decode.node.service->stats().dropped_for(DropReason::kChecksum), 8u);
  EXPECT_EQ(decode.copies->to_device, 0);
  for (const BlockId block : destinations_) {
    EXPECT_TRUE(decode.node.pool.IsUntouched(block));
  }
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
}

// A peer whose messages are longer than all slots together is told no, and holds up nobody.
TEST_P(Staging, MessagesLongerThanTheRingAreRefused) {
  Node prefill(Plain());
  DeviceNode decode(Plain(), {.slot_bytes = 5000, .send_slots = 1, .receive_slots = 3});
  const HandoffId id = Begin(prefill, decode.node);
  ASSERT_TRUE(decode.node.fetches.WaitEnd(id));
  EXPECT_EQ(decode.node.fetches.Get(id).why.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
}

// Blocks are ready as their layers are, in any order and by ones and twos.
TEST_P(Staging, LayersAreSentAsTheyAreComputed) {
  DeviceNode prefill(Plain());
  DeviceNode decode(Plain());
  const HandoffId id = HandoffId::Make();
  for (std::size_t i = 0; i < kBlocks; ++i) {
    prefill.node.pool.Fill(sources_[i], i);
  }
  ASSERT_TRUE(prefill.node.Offer(id, decode.node, sources_).ok());
  ASSERT_TRUE(decode.node.Fetch(id, prefill.node, MapFrom(0, destinations_)).ok());
  std::mt19937 random(4711);
  std::vector<ReadyRange> ranges;
  for (int block = 0; block < kBlocks; block += 2) {
    for (int layer = 0; layer < 5; ++layer) {
      ranges.push_back(
          {.first_block = block, .block_count = 2, .first_layer = layer, .layer_count = 1});
    }
  }
  std::shuffle(ranges.begin(), ranges.end(), random);
  int sent = 0;
  for (const ReadyRange& range : ranges) {
    prefill.node.service->MarkReady(id, range);
    // Every other time what is ready leaves before more is.
    if (++sent % 2 == 0) {
      ASSERT_TRUE(WaitUntil([&] { return prefill.copies->to_host > 0; }));
    }
  }
  prefill.node.service->FinishComputing(id);
  ExpectLanded(decode.node, id);
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }));
}

// A device pool without staging: refused before a pointer gets anywhere.
TEST_P(Staging, DevicePoolsNeedStaging) {
  Node node({Plain(), MemoryKind::kCudaDevice});
  EXPECT_EQ(node.failure.code(), absl::StatusCode::kFailedPrecondition) << node.failure;
}

TEST_P(Staging, NeedsSlots) {
  for (const staged::StagingOptions& options :
       {staged::StagingOptions{.slot_bytes = 0}, staged::StagingOptions{.send_slots = 0},
        staged::StagingOptions{.receive_slots = 0}}) {
    Node node({staged::MakeTransport(Plain(), MakeFakeCopier(), options), MemoryKind::kCudaDevice});
    EXPECT_EQ(node.failure.code(), absl::StatusCode::kInvalidArgument) << node.failure;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         Staging,
                         testing::Values("inproc", "ucx"),
                         [](const auto& transport) { return transport.param; });

TEST(SlotRing, GivesAllThatAMessageNeedsOrNothing) {
  std::vector<std::byte> memory(40);
  std::atomic<int> free_slots = 0;
  staged::SlotRing ring(memory, 10, free_slots);
  EXPECT_EQ(free_slots, 4);
  EXPECT_TRUE(ring.Fits(40));
  EXPECT_FALSE(ring.Fits(41));
  auto first = ring.Take(21);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].size(), 10u);
  EXPECT_EQ(first[2].size(), 1u);
  EXPECT_EQ(free_slots, 1);
  EXPECT_TRUE(ring.HasRoomFor(10));
  EXPECT_FALSE(ring.HasRoomFor(11));
  EXPECT_TRUE(ring.Take(11).empty());
  EXPECT_EQ(free_slots, 1);
  ring.Return(first);
  EXPECT_TRUE(first.empty());
  EXPECT_EQ(ring.Take(40).size(), 4u);
  EXPECT_EQ(free_slots, 0);
}

}  // namespace
}  // namespace baton
