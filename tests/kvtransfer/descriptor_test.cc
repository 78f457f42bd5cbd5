#include <gtest/gtest.h>

#include "kvtransfer/faulty/faulty_transport.h"
#include "kvtransfer/inproc/inproc_transport.h"
#include "tests/kvtransfer/transfer_harness.h"

namespace baton {
namespace {

// A model of 30 layers.
KvLayout DeepLayout() {
  KvLayout layout = SmallLayout();
  layout.layers = 30;
  return layout;
}

constexpr int kBlocks = 200;
constexpr int kPool = 400;

// T21: the lists that describe a handoff stay small beside what they describe, however scattered
// its blocks are: in memory a part for each block of a message, on the wire a few bytes for it.
TEST(Descriptors, ListsStaySmall) {
  const auto hub = inproc::MakeHub();
  const auto sent = std::make_shared<faulty::FaultLog>();
  const auto asked = std::make_shared<faulty::FaultLog>();
  const auto adjust = [](TransferOptions& options) { options.message_bytes = 1 << 20; };
  Node prefill(faulty::MakeTransport(inproc::MakeTransport(hub), {}, sent), adjust, DeepLayout(),
               kPool);
  Node decode(faulty::MakeTransport(inproc::MakeTransport(hub), {}, asked), adjust, DeepLayout(),
              kPool);
  const HandoffId id = HandoffId::Make();
  const std::vector<BlockId> sources = Scattered(kBlocks, kPool, 7);
  const std::vector<BlockId> destinations = Scattered(kBlocks, kPool, 11);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    prefill.pool.Fill(sources[i], i);
  }
  ASSERT_TRUE(prefill.Offer(id, decode, sources).ok());
  prefill.ReadyAll(id, kBlocks);
  ASSERT_TRUE(decode.Fetch(id, prefill, MapFrom(0, destinations)).ok());
  ASSERT_TRUE(decode.fetches.WaitEnd(id));
  ASSERT_EQ(decode.fetches.Get(id).landed, 1) << decode.fetches.Get(id).why;

  const std::size_t bytes = kBlocks * prefill.pool.layout().block_bytes();
  const auto messages = static_cast<std::size_t>(decode.fetches.Get(id).stats.messages);
  // Six messages of up to a MiB, or one more where they do not come out even.
  EXPECT_LE(messages, bytes / (1 << 20) + 2);
  // A block is in one message, or in two where one ends within it.
  EXPECT_LE(sent->parts, kBlocks + messages);
  EXPECT_LE(sent->header_bytes, bytes / 1000);
  // The prompt's blocks are one run of it.
  EXPECT_LE(asked->header_bytes, 1000u);
}

}  // namespace
}  // namespace baton
