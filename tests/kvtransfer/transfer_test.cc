#include <gtest/gtest.h>

#include <thread>

#include "kvtransfer/faulty/faulty_transport.h"
#include "kvtransfer/inproc/inproc_transport.h"
#include "kvtransfer/ucx/ucx_transport.h"
#include "tests/kvtransfer/transfer_harness.h"

namespace baton {
namespace {

// Every behaviour here holds for every transport.
class Transfer : public testing::TestWithParam<std::string> {
 protected:
  TransportFactory Factory() {
    ucx::SetDefaults();
    const bool faulty = GetParam().starts_with("faulty_");
    TransportFactory plain = GetParam().ends_with("ucx") ? ucx::MakeTransport({}) : inproc::MakeTransport(hub_);
    // Late and overtaken pieces, to which nothing may be sensitive.
    return faulty ? faulty::MakeTransport(plain, {{.action = faulty::FaultAction::kDelay,
                                                   .type = wire::MessageType::kData,
                                                   .first = 1,
                                                   .count = 2}})
                  : plain;
  }
  std::string Carrier() const { return GetParam().ends_with("ucx") ? "tcp" : "inproc"; }

  std::shared_ptr<inproc::Hub> hub_ = inproc::MakeHub();
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
  ASSERT_TRUE(prefill.offers.WaitEnd(id));
  EXPECT_EQ(prefill.offers.Get(id).state, PrefillHandoffState::kReleased);
  EXPECT_EQ(prefill.offers.Get(id).pins_alive, 0);
  EXPECT_TRUE(WaitFor([&] { return prefill.IsIdle() && decode.IsIdle(); }));
}

INSTANTIATE_TEST_SUITE_P(Transports, Transfer,
                         testing::Values("inproc", "ucx", "faulty_inproc", "faulty_ucx"),
                         [](const auto& transport) { return transport.param; });

}  // namespace
}  // namespace baton
