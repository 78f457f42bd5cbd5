#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/kvtransfer/test_transports.h"

namespace baton {

inline constexpr int kFaultBlocks = 12;

struct Outcome {
  OfferRecorder::End offer;
  FetchRecorder::End fetch;
  bool right = false;  // every wanted block holds its content
  int injected = 0;
  int messages = 0;  // sent by the damaged side
  int refetched = 0;
  std::uint64_t checksums_failed = 0;
};

class Faults : public testing::TestWithParam<std::string> {
 protected:
  NodeTransport Plain() { return transports_.Make(GetParam()); }
  std::string NameInStats() const { return TestTransports::NameInStats(GetParam()); }

  virtual void Adjust(TransferOptions&) {}

  // One handoff with `faults` on one side; whatever happens, both sides report one end and hold no
  // pin afterwards, and what is let go is never written again.
  Outcome HandOver(std::vector<faulty::Fault> faults, bool on_prefill_side) {
    const auto log = std::make_shared<faulty::FaultLog>();
    NodeTransport damaged = Plain();
    damaged.around = [&](TransportFactory inner) {
      return faulty::MakeTransport(std::move(inner), faults, log);
    };
    const auto adjust = [this](TransferOptions& options) {
      options.messages_in_flight = 3;
      Adjust(options);
    };
    Node prefill(on_prefill_side ? damaged : Plain(), adjust);
    Node decode(on_prefill_side ? Plain() : damaged, adjust);
    const HandoffId id = HandoffId::Make();
    const std::vector<BlockId> sources = Scattered(kFaultBlocks, 64, 7);
    const std::vector<BlockId> destinations = Scattered(kFaultBlocks, 64, 11);
    for (std::size_t i = 0; i < kFaultBlocks; ++i) {
      prefill.pool.Fill(sources[i], i);
    }
    EXPECT_TRUE(prefill.Offer(id, decode, sources).ok());
    EXPECT_TRUE(
        decode.Fetch(id, prefill, MapFrom(0, destinations), 1, std::chrono::seconds(2)).ok());
    prefill.ReadyAll(id, kFaultBlocks);

    EXPECT_TRUE(decode.fetches.WaitEnd(id));
    EXPECT_TRUE(prefill.offers.WaitEnd(id));
    EXPECT_TRUE(WaitUntil([&] { return prefill.IsIdle() && decode.IsIdle(); }))
        << "pins " << prefill.pins << " " << decode.pins << " quarantined "
        << decode.service->stats().quarantined_blocks;
    Outcome outcome;
    outcome.right = true;
    for (std::size_t i = 0; i < kFaultBlocks; ++i) {
      outcome.right = outcome.right && decode.pool.Holds(destinations[i], i);
    }
    for (const int whole : decode.fetches.Get(id).whole_blocks) {
      EXPECT_TRUE(decode.pool.Holds(destinations[static_cast<std::size_t>(whole)],
                                    static_cast<std::uint64_t>(whole)));
    }
    ExpectNothingIsWrittenAnyMore(decode);
    outcome.offer = prefill.offers.Get(id);
    outcome.fetch = decode.fetches.Get(id);
    outcome.injected = log->injected;
    outcome.messages = log->messages;
    outcome.refetched = outcome.fetch.stats.refetched_blocks;
    outcome.checksums_failed = decode.service->stats().dropped_for(DropReason::kChecksum);
    EXPECT_EQ(outcome.offer.calls, 1);
    EXPECT_EQ(outcome.offer.pins_alive, 0);
    EXPECT_EQ(outcome.fetch.calls(), 1);
    if (outcome.fetch.landed == 1) {
      EXPECT_TRUE(outcome.right);
    }
    return outcome;
  }

  // F39, T09: the pool is somebody else's now.
  static void ExpectNothingIsWrittenAnyMore(Node& node) {
    for (std::uint32_t i = 0; i < 64; ++i) {
      std::memset(node.pool.block(BlockId(i)), 0xc5, node.pool.layout().block_bytes());
    }
    EXPECT_FALSE(WaitUntil(
        [&] {
          for (std::uint32_t i = 0; i < 64; ++i) {
            if (!node.pool.IsUntouched(BlockId(i))) {
              return true;
            }
          }
          return false;
        },
        std::chrono::milliseconds(5)));
  }

  TestTransports transports_;
};

}  // namespace baton
