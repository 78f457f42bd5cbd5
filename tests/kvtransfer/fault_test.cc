#include "tests/kvtransfer/fault_fixture.h"

namespace baton {
namespace {

using faulty::FaultAction;

// F38, B41: as many damaged pieces are found as were damaged, none is kept, and the second try is
// right.
TEST_P(Faults, FlippedBytesAreFoundAndFetchedAgain) {
  for (int first = 0; first < 4; ++first) {
    const Outcome outcome =
        HandOver({{.action = FaultAction::kFlip, .type = wire::MessageType::kData, .first = first}},
                 /*on_prefill_side=*/true);
    EXPECT_EQ(outcome.injected, 1);
    EXPECT_EQ(outcome.checksums_failed, 1u);
    EXPECT_EQ(outcome.fetch.landed, 1) << outcome.fetch.why;
    EXPECT_EQ(outcome.refetched, 3);
    EXPECT_EQ(outcome.offer.state, PrefillHandoffState::kReleased);
  }
}

TEST_P(Faults, BytesFlippedEveryTimeAreDataLoss) {
  const Outcome outcome = HandOver(
      {{.action = FaultAction::kFlip, .type = wire::MessageType::kData, .first = 0, .count = 1000}},
      /*on_prefill_side=*/true);
  EXPECT_EQ(outcome.fetch.failed, 1);
  EXPECT_EQ(outcome.fetch.why.code(), absl::StatusCode::kDataLoss) << outcome.fetch.why;
  EXPECT_EQ(outcome.checksums_failed, static_cast<std::uint64_t>(outcome.injected));
  EXPECT_TRUE(outcome.fetch.whole_blocks.empty());
  EXPECT_EQ(outcome.offer.state, PrefillHandoffState::kCancelled);
}

TEST_P(Faults, LostPiecesAreFetchedAgain) {
  const Outcome outcome = HandOver(
      {{.action = FaultAction::kDrop, .type = wire::MessageType::kData, .first = 1, .count = 2}},
      true);
  EXPECT_EQ(outcome.fetch.landed, 1) << outcome.fetch.why;
  EXPECT_EQ(outcome.refetched, 6);
}

TEST_P(Faults, PiecesLostTwiceFail) {
  const Outcome outcome = HandOver(
      {{.action = FaultAction::kDrop, .type = wire::MessageType::kData, .first = 0, .count = 1000}},
      true);
  EXPECT_EQ(outcome.fetch.why.code(), absl::StatusCode::kUnavailable) << outcome.fetch.why;
}

// F37, F38: what comes twice is placed once.
TEST_P(Faults, DuplicatedMessagesChangeNothing) {
  for (const bool on_prefill_side : {true, false}) {
    const Outcome outcome = HandOver(
        {{.action = FaultAction::kDuplicate, .type = std::nullopt, .first = 0, .count = 1000}},
        on_prefill_side);
    EXPECT_EQ(outcome.fetch.landed, 1) << outcome.fetch.why;
    EXPECT_EQ(outcome.refetched, 0);
    EXPECT_EQ(outcome.offer.state, PrefillHandoffState::kReleased);
  }
}

TEST_P(Faults, DelayedMessagesChangeNothing) {
  for (const bool on_prefill_side : {true, false}) {
    const Outcome outcome = HandOver(
        {{.action = FaultAction::kDelay, .type = wire::MessageType::kData, .first = 0, .count = 2}},
        on_prefill_side);
    EXPECT_EQ(outcome.fetch.landed, 1) << outcome.fetch.why;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         Faults,
                         testing::Values("inproc", "ucx", "grpc"),
                         kTransportName);
INSTANTIATE_TEST_SUITE_P(DevicePools,
                         Faults,
                         testing::Values("staged_inproc", "staged_ucx"),
                         kTransportName);

}  // namespace
}  // namespace baton
