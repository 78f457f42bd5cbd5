// Workers that are stopped and go on later (faults.md F9, F10; T37): UCX sees nothing of it,
// heartbeats do.

#include <gtest/gtest.h>
#include <signal.h>

#include "tests/faults/fault_fixture.h"

namespace baton {
namespace {

class StoppedPeerTest : public FaultTest {};

// F10: the request goes on at the decode worker; what the other side does when it wakes changes
// nothing.
TEST_F(StoppedPeerTest, AStoppedPrefillWorkerIsGivenUp) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(WaitForHandoff());

  cluster().prefill().process().Signal(SIGSTOP);

  const TimePoint stopped = Clock::System().Now();
  EXPECT_TRUE(WaitUntil(
      [&] { return cluster().decode().Load().prefilled_tokens() > 0 || !stream->tokens().empty(); },
      Promised(kRecoveryBegins)));
  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  EXPECT_EQ(stream->timeline().reason(), v1::ROUTE_REASON_PREFILL_FAILED);
  // Past the lease the decode worker has long used the blocks for others.
  while (Clock::System().Now() - stopped < kLease + kBlocksFree) {
    ExpectAnswer(v1::PATH_COLOCATED, v1::ROUTE_REASON_NO_PREFILL_WORKER);
    ASSERT_FALSE(HasFailure());
  }

  cluster().prefill().process().Signal(SIGCONT);

  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
  ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

TEST_F(StoppedPeerTest, AForcedSplitIsUnavailable) {
  const auto stream = client().Stream(LongRequest(v1::PATH_DISAGGREGATED));
  ASSERT_TRUE(WaitForHandoff());

  cluster().prefill().process().Signal(SIGSTOP);

  const std::optional<absl::Status> end = stream->WaitForEnd(Promised(kRecoveryBegins));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code(), absl::StatusCode::kUnavailable) << *end;
  EXPECT_TRUE(WaitUntil([&] { return cluster().decode().IsIdle(); }, Promised(kLease)));
  cluster().prefill().process().Signal(SIGCONT);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

// F9: shorter than it takes to be suspected, nothing is done twice.
TEST_F(StoppedPeerTest, AShortStopOnlyDelays) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(WaitForHandoff());

  cluster().prefill().process().Signal(SIGSTOP);
  EXPECT_FALSE(stream->WaitForEnd(kSuspect / 2).has_value());
  cluster().prefill().process().Signal(SIGCONT);

  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  EXPECT_EQ(stream->timeline().path(), v1::PATH_DISAGGREGATED);
  EXPECT_EQ(cluster().decode().Load().prefilled_tokens(), 0u);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

TEST_F(StoppedPeerTest, AShortStopOfTheDecodeWorkerOnlyDelays) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(WaitForHandoff());

  cluster().decode().process().Signal(SIGSTOP);
  EXPECT_FALSE(stream->WaitForEnd(kSuspect / 2).has_value());
  cluster().decode().process().Signal(SIGCONT);

  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  EXPECT_EQ(stream->timeline().path(), v1::PATH_DISAGGREGATED);
  EXPECT_EQ(cluster().decode().Load().prefilled_tokens(), 0u);
  EXPECT_EQ(cluster().prefill().Load().prefilled_tokens(),
            static_cast<std::uint64_t>(request.tokens().ids_size()));
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

// T37, F10: the other way round. The prefill side waits for nobody beyond the lease.
TEST_F(StoppedPeerTest, AStoppedDecodeWorkerLosesItsLease) {
  const auto stream = client().Stream(LongRequest(v1::PATH_UNSPECIFIED));
  ASSERT_TRUE(WaitForHandoff());

  cluster().decode().process().Signal(SIGSTOP);

  EXPECT_TRUE(
      WaitUntil([&] { return cluster().prefill().IsIdle(); }, Promised(kLease + kBlocksFree)));
  cluster().decode().process().Signal(SIGCONT);
  const std::optional<absl::Status> end = stream->WaitForEnd();
  ASSERT_TRUE(end.has_value());
  // Whatever was decided about it, tokens are never wrong.
  if (end->ok()) {
    EXPECT_EQ(stream->tokens(), Expected(LongRequest(v1::PATH_UNSPECIFIED)));
  }
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
  ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);
}

// With one token wanted nothing is fetched, so no heartbeat of the transfer tells of the silence:
// the call's own pings do.
TEST_F(StoppedPeerTest, AStoppedPrefillWorkerThatOwesOneTokenIsGivenUp) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED, 1);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(WaitForPrefillAt(cluster().prefill()));

  cluster().prefill().process().Signal(SIGSTOP);

  EXPECT_TRUE(WaitUntil(
      [&] { return cluster().decode().Load().prefilled_tokens() > 0 || !stream->tokens().empty(); },
      Promised(kRecoveryBegins)));
  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  cluster().prefill().process().Signal(SIGCONT);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

}  // namespace
}  // namespace baton
