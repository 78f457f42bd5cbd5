// The other process of process_test: peer_process prefill|decode PORT INSTANCE HANDOFF READY_BLOCKS
// [ADDRESS PEER].
//
// prefill offers 20 blocks filled with their index and marks the first READY_BLOCKS ready; decode
// fetches 20 blocks from ADDRESS. Prints its address, then "landed" or "failed". Lives until its
// standard input is closed.
#include "tests/kvtransfer/peer_process.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "kvtransfer/ucx/ucx_transport.h"
#include "tests/kvtransfer/transfer_harness.h"

int main(int argc, char** argv) {
  using namespace baton;  // NOLINT(google-build-using-namespace)
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc < 6) {
    return 2;
  }
  const std::string role = argv[1];
  const InstanceId instance = FromHex<InstanceId>(argv[3]);
  const HandoffId id = FromHex<HandoffId>(argv[4]);
  const int ready_blocks = std::atoi(argv[5]);
  const InstanceId peer = FromHex<InstanceId>(argv[argc - 1]);

  ucx::SetDefaults();
  Node node(ucx::MakeTransport({.port = std::atoi(argv[2])}),
            [&](TransferOptions& options) { options.instance = instance; });
  if (!node.failure.ok()) {
    std::printf("%s\n", node.failure.ToString().c_str());
    return 1;
  }
  if (role == "prefill") {
    const std::vector<BlockId> sources = Scattered(kProcessBlocks, 64, 7);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      node.pool.Fill(sources[i], i);
    }
    const absl::Status offered =
        node.service->Offer({.id = id,
                             .epoch = 1,
                             .peer = peer,
                             .blocks = sources,
                             .pin = std::make_unique<CountingPin>(node.pins),
                             .sink = &node.offers});
    node.service->MarkReady(id, {.first_block = 0,
                                 .block_count = ready_blocks,
                                 .first_layer = 0,
                                 .layer_count = node.pool.layout().layers});
    if (ready_blocks == kProcessBlocks) {
      node.service->FinishComputing(id);
    }
    std::printf("%s\n",
                offered.ok() ? node.service->address().c_str() : offered.ToString().c_str());
    std::fflush(stdout);
  } else {
    const absl::Status fetched =
        node.service->Fetch({.id = id,
                             .epoch = 1,
                             .address = argv[6],
                             .peer = peer,
                             .blocks = MapFrom(0, Scattered(kProcessBlocks, 64, 11)),
                             .pin = std::make_unique<CountingPin>(node.pins),
                             .deadline = Clock::System().Now() + kTestPatience,
                             .sink = &node.fetches});
    std::printf("%s\n",
                fetched.ok() ? node.service->address().c_str() : fetched.ToString().c_str());
    std::fflush(stdout);
    node.fetches.WaitEnd(id);
    std::printf("%s\n", node.fetches.Get(id).landed == 1 ? "landed" : "failed");
    std::fflush(stdout);
  }
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
