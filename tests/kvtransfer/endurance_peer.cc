// The prefill side of endurance_test, a process of its own: endurance_peer INSTANCE PEER.
//
// Prints its address. For each line "FIRST COUNT" on standard input it offers the handoffs FIRST to
// FIRST + COUNT - 1, as many at once as its blocks allow, waits until all have ended, and prints
//
//   FREE_BLOCKS OPEN_OFFERS RELEASED LATE_WRITES MESSAGES_SENT BYTES_SENT RESIDENT_KIB OPEN_FILES
//
// the counts since it started. Ends with its standard input.
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <iostream>

#include "kvtransfer/ucx/ucx_transport.h"
#include "tests/kvtransfer/block_stock.h"
#include "tests/kvtransfer/endurance.h"
#include "tests/kvtransfer/peer_process.h"

namespace baton {
namespace {

class ReleaseCounter final : public OfferSink {
 public:
  void OnEnd(HandoffId, PrefillHandoffState end, const absl::Status&, const OfferStats&) override {
    released += end == PrefillHandoffState::kReleased ? 1 : 0;
  }
  std::atomic<int> released = 0;
};

bool Offer(Node& node, BlockStock& stock, ReleaseCounter& sink, InstanceId peer, std::uint64_t i) {
  const auto lease = stock.Take(kEnduranceBlocks);
  if (lease == nullptr) {
    return false;
  }
  for (int block = 0; block < kEnduranceBlocks; ++block) {
    node.pool.Fill(lease->blocks()[static_cast<std::size_t>(block)], EnduranceContent(i, block));
  }
  const absl::Status offered = node.service->Offer({.id = EnduranceId(i),
                                                    .epoch = 1,
                                                    .peer = peer,
                                                    .blocks = lease->blocks(),
                                                    .pin = std::make_unique<LeasePin>(lease),
                                                    .sink = &sink});
  node.ReadyAll(EnduranceId(i), kEnduranceBlocks);
  return offered.ok();
}

int Run(InstanceId instance, InstanceId peer) {
  Node node(
      ucx::MakeTransport({}), [&](TransferOptions& options) { options.instance = instance; },
      SmallLayout(), kEndurancePoolBlocks);
  if (!node.failure.ok()) {
    std::printf("%s\n", node.failure.ToString().c_str());
    return 1;
  }
  BlockStock stock(node.pool, kEndurancePoolBlocks);
  ReleaseCounter sink;
  std::printf("%s\n", node.service->address().c_str());
  std::fflush(stdout);
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  while (std::cin >> first >> count) {
    for (std::uint64_t i = first; i < first + count; ++i) {
      if (!Offer(node, stock, sink, peer, i)) {
        std::printf("no blocks, or no offer, for handoff %llu\n",
                    static_cast<unsigned long long>(i));
        return 1;
      }
    }
    WaitUntil([&] { return stock.free() == stock.total() && node.IsIdle(); }, kTestPatience);
    stock.CheckPoison();
    const TransferStats stats = node.service->stats();
    const ProcessUse use = ProcessUse::Now();
    std::printf("%d %d %d %d %llu %llu %zu %zu\n", stock.free(), stats.offers, sink.released.load(),
                stock.late_writes(), static_cast<unsigned long long>(stats.messages_sent),
                static_cast<unsigned long long>(stats.bytes_sent), use.resident_kib,
                use.open_files);
    std::fflush(stdout);
  }
  node.service.reset();  // before what its sinks and pins refer to
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc != 3) {
    return 2;
  }
  baton::ucx::SetDefaults();
  return baton::Run(baton::FromHex<baton::InstanceId>(argv[1]),
                    baton::FromHex<baton::InstanceId>(argv[2]));
}
