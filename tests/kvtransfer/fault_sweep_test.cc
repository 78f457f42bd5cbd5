#include "tests/kvtransfer/fault_fixture.h"

namespace baton {
namespace {

using faulty::FaultAction;

// F2, F17: each message in turn is dropped, cut short, or is the last before the connection breaks
// or falls silent.
class FaultAtEachMessage : public Faults {
 protected:
  // Short, so that silence is soon noticed; the deadline stays long, so that it is rarely what ends
  // a handoff.
  void Adjust(TransferOptions& options) override {
    TransferTimes& times = options.times;
    times.heartbeat = std::chrono::milliseconds(20);
    times.suspect = std::chrono::milliseconds(150);
    times.dead = std::chrono::milliseconds(400);
    times.lease = std::chrono::milliseconds(600);
    times.let_go = std::chrono::milliseconds(250);
    times.connect = std::chrono::milliseconds(500);
  }

  void Sweep(FaultAction action, bool on_prefill_side, int step) {
    int landed = 0;
    int failed = 0;
    for (int message = 0; message < 40; message += step) {
      SCOPED_TRACE(testing::Message() << "message " << message);
      const Outcome outcome =
          HandOver({{.action = action, .type = std::nullopt, .first = message}}, on_prefill_side);
      landed += outcome.fetch.landed;
      failed += outcome.fetch.failed;
      if (outcome.injected == 0) {
        EXPECT_EQ(outcome.fetch.landed, 1);
        break;
      }
    }
    RecordProperty("landed", landed);
    RecordProperty("failed", failed);
    EXPECT_GT(landed + failed, 2);
  }
};

TEST_P(FaultAtEachMessage, PrefillSideConnectionBreaks) {
  Sweep(FaultAction::kKill, true, 1);
}
TEST_P(FaultAtEachMessage, DecodeSideConnectionBreaks) {
  Sweep(FaultAction::kKill, false, 1);
}
TEST_P(FaultAtEachMessage, PrefillSideFallsSilent) {
  Sweep(FaultAction::kMute, true, 2);
}
TEST_P(FaultAtEachMessage, DecodeSideFallsSilent) {
  Sweep(FaultAction::kMute, false, 1);
}
TEST_P(FaultAtEachMessage, PrefillSideMessageIsLost) {
  Sweep(FaultAction::kDrop, true, 1);
}
TEST_P(FaultAtEachMessage, DecodeSideMessageIsLost) {
  Sweep(FaultAction::kDrop, false, 1);
}
TEST_P(FaultAtEachMessage, PrefillSideMessageIsCutShort) {
  Sweep(FaultAction::kTruncate, true, 1);
}
TEST_P(FaultAtEachMessage, DecodeSideMessageIsCutShort) {
  Sweep(FaultAction::kTruncate, false, 1);
}
TEST_P(FaultAtEachMessage, PrefillSideMessageIsDamaged) {
  Sweep(FaultAction::kFlip, true, 1);
}
TEST_P(FaultAtEachMessage, DecodeSideMessageIsDamaged) {
  Sweep(FaultAction::kFlip, false, 1);
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         FaultAtEachMessage,
                         testing::Values("inproc", "ucx", "grpc", "mapped", "mapped_ucx"),
                         kTransportName);
INSTANTIATE_TEST_SUITE_P(DevicePools,
                         FaultAtEachMessage,
                         testing::Values("staged_inproc", "staged_ucx"),
                         kTransportName);

}  // namespace
}  // namespace baton
