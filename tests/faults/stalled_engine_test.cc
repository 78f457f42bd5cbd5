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

  FailpointControl failpoints_;
};

TEST_F(StalledEngineTest, TheWorkerIsNotServingAndRequestsGoElsewhereUntilItGoesOn) {
  ServerProcess& hung = cluster().decode(0);
  const CompletionsClient direct(hung.address());
  const v1::CompleteRequest begun = GreedyRequest(TinyPrompt(1, 40), 3'000, v1::PATH_COLOCATED);
  const Tokens expected = Expected(begun);
  const auto stream = direct.Stream(begun);
  ASSERT_TRUE(stream->WaitForTokens(1));
  failpoints_.Arm("engine.compute", "pause 1");
  ASSERT_TRUE(failpoints_.WaitForHit("engine.compute", kPatience));
  const TimePoint begin = Clock::System().Now();
  const auto waits = direct.Stream(GreedyRequest(TinyPrompt(2, 40), 20, v1::PATH_COLOCATED));
  EXPECT_TRUE(direct.IsServing());
  EXPECT_TRUE(WaitUntil([&] { return !direct.IsServing(); }, kNotServing));
  Print("NOT_SERVING after", begin);
  EXPECT_TRUE(absl::StrContains(hung.process().ErrorOutput(), "engine.stalled"));
  // What had not begun need not wait here.
  const std::optional<absl::Status> given_up = waits->WaitForEnd(Promised(kRecoveryBegins));
  ASSERT_TRUE(given_up.has_value());
  EXPECT_EQ(given_up->code(), absl::StatusCode::kUnavailable) << *given_up;

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
  EXPECT_EQ(stream->tokens(), expected) << "what had begun went on where it was";
  EXPECT_TRUE(cluster().WaitForUsableWorkers(3));
  EXPECT_TRUE(direct.Complete(GreedyRequest(TinyPrompt(2, 8), 2, v1::PATH_COLOCATED)).ok());
  EXPECT_TRUE(cluster().WaitUntilIdle());
}

// A request that a router has sent there is answered by somebody else, as if the worker had died.
TEST_F(StalledEngineTest, WhatHasNotBegunIsServedElsewhere) {
  const v1::CompleteRequest request = GreedyRequest(TinyPrompt(4, 40), 20, v1::PATH_COLOCATED);
  const Tokens expected = Expected(request);
  failpoints_.Arm("engine.compute", "pause 1");
  const TimePoint begin = Clock::System().Now();
  const auto stream = client().Stream(request);
  ASSERT_TRUE(failpoints_.WaitForHit("engine.compute", kPatience));
  const std::optional<absl::Status> end = stream->WaitForEnd(kNotServing + kRecoveryBegins);
  ASSERT_TRUE(end.has_value());
  Print("answered after", begin);
  EXPECT_EQ(*end, absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  failpoints_.Release("engine.compute");
  ASSERT_TRUE(cluster().WaitForUsableWorkers(3));
  EXPECT_TRUE(cluster().WaitUntilIdle());
}

// A prefill worker is left out of routes as well, and who waits for its blocks goes on without.
TEST_F(StalledEngineTest, APrefillWorkerThatHangsIsLeftOut) {
  failpoints_.Arm("engine.compute", "pause 1");
  const v1::CompleteRequest request = GreedyRequest(TinyPrompt(3, 600), 8, v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(failpoints_.WaitForHit("engine.compute", kPatience));
  const CompletionsClient prefill(cluster().prefill().address());
  EXPECT_TRUE(WaitUntil([&] { return !prefill.IsServing(); }, kNotServing));
  const std::optional<absl::Status> end = stream->WaitForEnd(Promised(kRecoveryBegins));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(*end, absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  EXPECT_EQ(stream->timeline().reason(), v1::ROUTE_REASON_PREFILL_FAILED);
  ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  ExpectAnswer(v1::PATH_COLOCATED, v1::ROUTE_REASON_NO_PREFILL_WORKER);

  failpoints_.Release("engine.compute");
  EXPECT_TRUE(WaitUntil([&] { return prefill.IsServing(); }, kNotServing));
  ASSERT_TRUE(cluster().WaitForUsableWorkers(3));
  ExpectSplitSoon();  // after a handoff that failed the pair gets a rest
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
