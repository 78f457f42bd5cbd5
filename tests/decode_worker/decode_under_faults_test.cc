#include <gtest/gtest.h>

#include "decode_worker/decode_sessions.h"
#include "kvtransfer/faulty/faulty_transport.h"
#include "kvtransfer/wire.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/two_workers.h"

namespace baton {
namespace {

// Every fault of the transport, at each of the first messages either side sends: the right tokens
// whatever happens.
struct TransportFault {
  const char* name;
  faulty::FaultAction action;
};

class DecodeUnderFaults : public testing::TestWithParam<TransportFault> {};

TEST_P(DecodeUnderFaults, TokensAreRightWhateverTheTransportDoes) {
  const TinyCheckpoint model;
  for (const bool prefill_side : {true, false}) {
    for (int first = 0; first < 6; first += prefill_side ? 1 : 2) {
      SCOPED_TRACE(std::string(prefill_side ? "prefill" : "decode") + " side, message " +
                   std::to_string(first));
      const std::shared_ptr<inproc::Hub> hub = inproc::MakeHub();
      const auto faulty_transport = faulty::MakeTransport(
          inproc::MakeTransport(hub), {{.action = GetParam().action, .first = first, .count = 2}});
      PrefillNode prefill(model.file(),
                          prefill_side ? faulty_transport : inproc::MakeTransport(hub));
      DecodeNode decode(model.file(), prefill_side ? inproc::MakeTransport(hub) : faulty_transport);
      DecodeJob job = MakeJob(700, 8, 13);
      const auto plain = decode.Start(job);
      ASSERT_TRUE(plain->WaitForEnd().ok());
      job.prefill = {prefill.candidate()};

      const auto observer = decode.Start(job);

      EXPECT_TRUE(observer->WaitForEnd().ok());
      EXPECT_EQ(observer->tokens(), plain->tokens());
      EXPECT_TRUE(AllBlocksFree(*decode.core));
      EXPECT_TRUE(AllBlocksFree(*prefill.core));
    }
  }
}

// F38: a message that is lost for good, either way, does not hold the request until its deadline.
TEST(DecodeUnderLoss, AMessageThatNeverComesIsNotWaitedForLong) {
  const TinyCheckpoint model;
  for (const wire::MessageType lost :
       {wire::MessageType::kFetch, wire::MessageType::kData, wire::MessageType::kComplete}) {
    SCOPED_TRACE(static_cast<int>(lost));
    const std::shared_ptr<inproc::Hub> hub = inproc::MakeHub();
    const auto lossy = faulty::MakeTransport(
        inproc::MakeTransport(hub),
        {{.action = faulty::FaultAction::kDrop, .type = lost, .first = 0, .count = 1 << 20}});
    PrefillNode prefill(model.file(), lossy);
    DecodeNode decode(model.file(), lossy);
    DecodeJob job = MakeJob(700, 8, 14);
    const auto plain = decode.Start(job);
    ASSERT_TRUE(plain->WaitForEnd().ok());
    job.prefill = {prefill.candidate()};
    const TimePoint begin = Clock::System().Now();

    const auto observer = decode.Start(job);

    EXPECT_TRUE(observer->WaitForEnd().ok());
    EXPECT_EQ(observer->tokens(), plain->tokens());
    // Once all pieces are here, nobody misses the message that says so.
    EXPECT_EQ(observer->result().finished.prefill_failed(), lost != wire::MessageType::kComplete);
    EXPECT_LT(Clock::System().Now() - begin, std::chrono::seconds(15));
    EXPECT_TRUE(AllBlocksFree(*decode.core));
    EXPECT_TRUE(AllBlocksFree(*prefill.core));
  }
}

INSTANTIATE_TEST_SUITE_P(Every,
                         DecodeUnderFaults,
                         testing::Values(TransportFault{"Delay", faulty::FaultAction::kDelay},
                                         TransportFault{"Drop", faulty::FaultAction::kDrop},
                                         TransportFault{"Duplicate",
                                                        faulty::FaultAction::kDuplicate},
                                         TransportFault{"Truncate", faulty::FaultAction::kTruncate},
                                         TransportFault{"Flip", faulty::FaultAction::kFlip},
                                         TransportFault{"Kill", faulty::FaultAction::kKill},
                                         TransportFault{"Mute", faulty::FaultAction::kMute}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace baton
