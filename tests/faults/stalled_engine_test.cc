// An engine that hangs while its process lives on and answers (B58).

#include <gtest/gtest.h>
#include <signal.h>

#include <memory>

#include "absl/strings/match.h"
#include "proto/status_conversion.h"
#include "tests/faults/fault_fixture.h"
#include "tests/support/failpoint_control.h"

namespace baton {
namespace {

// The row's number: B58.
constexpr std::chrono::milliseconds kNotServing = std::chrono::seconds(5);

class StalledEngineTest : public FaultTest {
 protected:
  std::string FailpointFolder() const override { return failpoints_.folder(); }
  int DecodeWorkers() const override { return 2; }

  // Starts a request whose next step hangs, and waits until its worker says so.
  std::unique_ptr<StreamedCompletion> Hang(ServerProcess& worker, const CompletionsClient& direct) {
    EXPECT_TRUE(direct.IsServing());
    failpoints_.Arm("engine.compute", "pause 1");
    const TimePoint begin = Clock::System().Now();
    auto stream = direct.Stream(GreedyRequest(TinyPrompt(1, 40), 20, v1::PATH_COLOCATED));
    EXPECT_TRUE(failpoints_.WaitForHit("engine.compute", kPatience));
    EXPECT_TRUE(WaitUntil([&] { return !direct.IsServing(); }, kNotServing));
    Print("from the request to NOT_SERVING", begin);
    EXPECT_TRUE(absl::StrContains(worker.process().ErrorOutput(), "engine.stalled"));
    return stream;
  }

  FailpointControl failpoints_;
};

TEST_F(StalledEngineTest, TheWorkerIsNotServingAndRequestsGoElsewhereUntilItGoesOn) {
  ServerProcess& hung = cluster().decode(0);
  const CompletionsClient direct(hung.address());
  const auto stream = Hang(hung, direct);

  // The router knows, says why, and sends everything to the other one.
  ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  const auto status = cluster().router().Status();
  ASSERT_TRUE(status.ok());
  EXPECT_TRUE(status->workers(0).alive());
  EXPECT_EQ(status->workers(0).problem(), "can run nothing: its engine stands still");
  for (const v1::Path path : {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED}) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      const v1::CompleteRequest request = GreedyRequest(TinyPrompt(10 + i, 600), 8, path);
      const auto response = client().Complete(request);
      ASSERT_TRUE(response.ok()) << response.status();
      EXPECT_EQ(TokensOf(*response), Expected(request));
      EXPECT_EQ(response->timeline().decode_worker(), cluster().decode(1).address());
    }
  }
  EXPECT_TRUE(client().IsServing());
  // Who asks it all the same is told at once instead of waiting for nothing.
  const auto refused = direct.Complete(GreedyRequest(TinyPrompt(2, 8), 2, v1::PATH_COLOCATED));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable) << refused.status();
  EXPECT_EQ(ReasonOf(refused.status()), "ENGINE_STALLED");
  EXPECT_FALSE(hung.Status()->ready());

  failpoints_.Release("engine.compute");
  EXPECT_TRUE(WaitUntil([&] { return direct.IsServing(); }, kNotServing));
  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), Expected(GreedyRequest(TinyPrompt(1, 40), 20, v1::PATH_COLOCATED)));
  EXPECT_TRUE(cluster().WaitForUsableWorkers(3));
  EXPECT_TRUE(direct.Complete(GreedyRequest(TinyPrompt(2, 8), 2, v1::PATH_COLOCATED)).ok());
  EXPECT_TRUE(cluster().WaitUntilIdle());
}

// A prefill worker is left out of routes as well.
TEST_F(StalledEngineTest, APrefillWorkerThatHangsIsLeftOut) {
  failpoints_.Arm("engine.compute", "pause 1");
  const auto stream = client().Stream(GreedyRequest(TinyPrompt(3, 600), 8, v1::PATH_DISAGGREGATED));
  ASSERT_TRUE(failpoints_.WaitForHit("engine.compute", kPatience));
  const CompletionsClient prefill(cluster().prefill().address());
  EXPECT_TRUE(WaitUntil([&] { return !prefill.IsServing(); }, kNotServing));
  ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  ExpectAnswer(v1::PATH_COLOCATED, v1::ROUTE_REASON_NO_PREFILL_WORKER);

  failpoints_.Release("engine.compute");
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsServing(); }, kNotServing));
  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  ASSERT_TRUE(cluster().WaitForUsableWorkers(3));
  ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_TRUE(cluster().WaitUntilIdle());
}

// A process that was stopped as a whole has not hung, however long that was.
TEST_F(StalledEngineTest, AStoppedProcessHasNotHung) {
  ServerProcess& stopped = cluster().decode(0);
  stopped.process().Signal(SIGSTOP);
  // The router sees it go; well beyond the limit it comes back.
  const TimePoint end = Clock::System().Now() + std::chrono::seconds(4);
  EXPECT_TRUE(cluster().WaitForUsableWorkers(2));
  EXPECT_TRUE(WaitUntil([&] { return Clock::System().Now() >= end; }, kPatience));
  stopped.process().Signal(SIGCONT);
  EXPECT_TRUE(cluster().WaitForUsableWorkers(3));
  EXPECT_TRUE(CompletionsClient(stopped.address()).IsServing());
  EXPECT_FALSE(absl::StrContains(stopped.process().ErrorOutput(), "engine.stalled"));
}

}  // namespace
}  // namespace baton
