#include <gtest/gtest.h>

#include "kvtransfer/ucx/ucx_transport.h"
#include "tests/kvtransfer/child_process.h"
#include "tests/kvtransfer/endurance.h"
#include "tests/kvtransfer/peer_process.h"
#include "tests/kvtransfer/transfer_harness.h"

namespace baton {
namespace {

// Two real processes over UCX; one of them dies, stops or is started again.
class TwoProcesses : public testing::Test {
 protected:
  TwoProcesses() { ucx::SetDefaults(); }

  std::unique_ptr<ChildProcess> StartPrefill(int port, int ready_blocks, const Node& decode) {
    instance_ = InstanceId::Make();
    id_ = HandoffId::Make();
    auto child = std::make_unique<ChildProcess>(std::vector<std::string>{
        PEER_PROCESS, "prefill", std::to_string(port), instance_.ToString(), id_.ToString(),
        std::to_string(ready_blocks), decode.options.instance.ToString()});
    address_ = child->ReadLine();
    return child;
  }

  absl::Status Fetch(Node& decode) {
    return decode.service->Fetch({.id = id_,
                                  .epoch = 1,
                                  .address = address_,
                                  .peer = instance_,
                                  .blocks = MapFrom(0, Scattered(kProcessBlocks, 64, 11)),
                                  .pin = std::make_unique<CountingPin>(decode.pins),
                                  .deadline = Clock::System().Now() + kTestPatience,
                                  .sink = &decode.fetches});
  }
  static bool AllRight(Node& decode) {
    const std::vector<BlockId> destinations = Scattered(kProcessBlocks, 64, 11);
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (!decode.pool.Holds(destinations[i], i)) {
        return false;
      }
    }
    return true;
  }

  InstanceId instance_;
  HandoffId id_;
  std::string address_;
};

// F1, F2, T33: killed with pieces under way; the decode side knows within two seconds, names what
// is whole, and is free.
TEST_F(TwoProcesses, KilledPrefillSideIsNoticed) {
  Node decode(ucx::MakeTransport({}));
  const std::unique_ptr<ChildProcess> prefill = StartPrefill(0, 7, decode);
  ASSERT_TRUE(Fetch(decode).ok());
  ASSERT_TRUE(WaitUntil([&] {
    return decode.service->stats().bytes_received == 7 * decode.pool.layout().block_bytes();
  })) << address_;

  const TimePoint killed = Clock::System().Now();
  prefill->Kill();

  ASSERT_TRUE(decode.fetches.WaitEnd(id_));
  EXPECT_LT(Clock::System().Now() - killed, std::chrono::seconds(2));
  const FetchRecorder::End end = decode.fetches.Get(id_);
  EXPECT_EQ(end.why.code(), absl::StatusCode::kUnavailable) << end.why;
  EXPECT_EQ(end.whole_blocks, (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(WaitUntil([&] { return decode.IsIdle(); }));
  EXPECT_EQ(end.calls(), 1);
}

// F10, T37: UCX never notices a stopped peer; the heartbeats do. On waking it does no harm.
TEST_F(TwoProcesses, StoppedPrefillSideIsNoticed) {
  Node decode(ucx::MakeTransport({}));
  const std::unique_ptr<ChildProcess> prefill = StartPrefill(0, 7, decode);
  ASSERT_TRUE(Fetch(decode).ok());
  ASSERT_TRUE(WaitUntil([&] {
    return decode.service->stats().bytes_received == 7 * decode.pool.layout().block_bytes();
  }));

  const TimePoint stopped = Clock::System().Now();
  prefill->Signal(SIGSTOP);

  ASSERT_TRUE(decode.fetches.WaitEnd(id_));
  EXPECT_GT(Clock::System().Now() - stopped, std::chrono::milliseconds(500));
  EXPECT_LT(Clock::System().Now() - stopped, std::chrono::seconds(2));
  EXPECT_EQ(decode.fetches.Get(id_).why.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(WaitUntil([&] { return decode.IsIdle(); }));
  for (std::uint32_t i = 0; i < 64; ++i) {
    std::memset(decode.pool.block(BlockId(i)), 0xc5, decode.pool.layout().block_bytes());
  }
  prefill->Signal(SIGCONT);
  EXPECT_FALSE(WaitUntil([&] { return !decode.pool.IsUntouched(BlockId(3)); },
                         std::chrono::milliseconds(100)));
}

// T32: of a peer that died with nothing open nothing is kept, and nobody tries to reach it.
TEST_F(TwoProcesses, NothingOfADeadPeerIsKept) {
  Node decode(ucx::MakeTransport({}));
  const std::size_t files_before = ProcessUse::Now().open_files;
  std::unique_ptr<ChildProcess> prefill = StartPrefill(0, kProcessBlocks, decode);
  ASSERT_TRUE(Fetch(decode).ok());
  ASSERT_TRUE(decode.fetches.WaitEnd(id_));
  ASSERT_EQ(decode.service->stats().connections, 1);

  prefill.reset();

  EXPECT_TRUE(
      WaitUntil([&] { return decode.service->stats().connections == 0; }, std::chrono::seconds(2)));
  EXPECT_TRUE(WaitUntil([&] { return ProcessUse::Now().open_files == files_before; }))
      << ProcessUse::Now().open_files << " open files, " << files_before << " before";
  EXPECT_EQ(decode.service->stats().connects, 1u);
  EXPECT_TRUE(decode.IsIdle());
}

// F4: the decode side is killed; pinned blocks come back with the end of the lease.
TEST_F(TwoProcesses, KilledDecodeSideLetsTheLeaseExpire) {
  Node prefill(ucx::MakeTransport({}), [](TransferOptions& options) {
    options.times.lease = std::chrono::milliseconds(800);
  });
  const HandoffId id = HandoffId::Make();
  const InstanceId instance = InstanceId::Make();
  ASSERT_TRUE(prefill.service
                  ->Offer({.id = id,
                           .epoch = 1,
                           .peer = instance,
                           .blocks = Scattered(kProcessBlocks, 64, 7),
                           .pin = std::make_unique<CountingPin>(prefill.pins),
                           .sink = &prefill.offers})
                  .ok());
  prefill.service->MarkReady(
      id, {.first_block = 0, .block_count = 7, .first_layer = 0, .layer_count = 5});
  ChildProcess decode({PEER_PROCESS, "decode", "0", instance.ToString(), id.ToString(), "0",
                       prefill.service->address(), prefill.options.instance.ToString()});
  ASSERT_FALSE(decode.ReadLine().empty());
  ASSERT_TRUE(WaitUntil([&] {
    return prefill.service->stats().bytes_sent == 7 * prefill.pool.layout().block_bytes();
  }));
  EXPECT_EQ(prefill.offers.Get(id).calls, 0);

  decode.Kill();

  ASSERT_TRUE(prefill.offers.WaitEnd(id));
  EXPECT_EQ(prefill.offers.Get(id).state, PrefillHandoffState::kExpired);
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle(); }));
}

// F8, T30, B47, B49: the prefill side is killed and started on the same port again and again; each
// handoff works, and nothing known of an earlier instance is in the way.
TEST_F(TwoProcesses, RestartsOnTheSamePortAreFollowed) {
  Node decode(ucx::MakeTransport({}));
  int port = 0;
  for (int run = 0; run < 8; ++run) {
    const std::unique_ptr<ChildProcess> prefill = StartPrefill(port, kProcessBlocks, decode);
    const std::size_t colon = address_.rfind(':');
    ASSERT_NE(colon, std::string::npos) << address_;
    port = std::stoi(address_.substr(colon + 1));
    ASSERT_TRUE(Fetch(decode).ok());
    ASSERT_TRUE(decode.fetches.WaitEnd(id_));
    ASSERT_EQ(decode.fetches.Get(id_).landed, 1)
        << "run " << run << ": " << decode.fetches.Get(id_).why;
    EXPECT_TRUE(AllRight(decode));
    for (std::uint32_t i = 0; i < 64; ++i) {
      std::memset(decode.pool.block(BlockId(i)), 0xc5, decode.pool.layout().block_bytes());
    }
  }
  EXPECT_TRUE(WaitUntil([&] { return decode.IsIdle(); }));
}

// The old instance has died unnoticed, since nothing was open; a fetch meant for it meets its
// successor.
TEST_F(TwoProcesses, AFetchMeantForTheOldInstanceIsRefused) {
  Node decode(ucx::MakeTransport({}));
  std::unique_ptr<ChildProcess> prefill = StartPrefill(0, kProcessBlocks, decode);
  const InstanceId old_instance = instance_;
  const int port = std::stoi(address_.substr(address_.rfind(':') + 1));
  ASSERT_TRUE(Fetch(decode).ok());
  ASSERT_TRUE(decode.fetches.WaitEnd(id_));
  prefill->Kill();
  prefill = StartPrefill(port, kProcessBlocks, decode);
  const HandoffId current = id_;
  const InstanceId new_instance = instance_;
  instance_ = old_instance;
  id_ = HandoffId::Make();
  ASSERT_TRUE(Fetch(decode).ok());
  ASSERT_TRUE(decode.fetches.WaitEnd(id_));
  EXPECT_EQ(decode.fetches.Get(id_).why.code(), absl::StatusCode::kUnavailable)
      << decode.fetches.Get(id_).why;

  instance_ = new_instance;
  id_ = current;
  ASSERT_TRUE(Fetch(decode).ok());
  ASSERT_TRUE(decode.fetches.WaitEnd(id_));
  EXPECT_EQ(decode.fetches.Get(id_).landed, 1) << decode.fetches.Get(id_).why;
}

}  // namespace
}  // namespace baton
