// SIGTERM: NOT_SERVING, no new work, requests under way finish, exit 0 (faults.md F12); a second
// one, or the end of the grace, ends them with UNAVAILABLE and exit 3 (F13).

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "tests/faults/fault_fixture.h"

namespace baton {
namespace {

constexpr int kDrained = 0;
constexpr int kCutShort = 3;
// Enough tokens that the stream outlasts what a test does meanwhile.
constexpr std::uint32_t kSomeTokens = 1500;

class DrainTest : public FaultTest {
 protected:
  void ExpectExit(ServerProcess& server, int code) {
    const std::optional<ProcessEnd> end = server.process().WaitForEnd(kPatience);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->code, code) << "signal " << end->signal.value_or(0);
    // The ready line is all there ever was on standard output.
    EXPECT_EQ(server.process().ReadRest(), "");
  }
  v1::CompleteRequest SomeStream(v1::Path path) {
    return GreedyRequest(TinyPrompt(2, 600), kSomeTokens, path);
  }
};

TEST_F(DrainTest, TheDecodeWorkerFinishesItsStreams) {
  const v1::CompleteRequest request = SomeStream(v1::PATH_DISAGGREGATED);
  const Tokens expected = Expected(request);
  const auto routed = client().Stream(request);
  const CompletionsClient direct(cluster().decode().address());
  const auto asked_directly = direct.Stream(SomeStream(v1::PATH_COLOCATED));
  ASSERT_TRUE(routed->WaitForTokens(1));
  ASSERT_TRUE(asked_directly->WaitForTokens(1));

  cluster().decode().process().Signal(SIGTERM);

  EXPECT_TRUE(WaitUntil([&] { return !direct.IsServing(); }, kPatience));
  // What the router sends before it has heard of it is finished too.
  EXPECT_TRUE(WaitUntil([&] { return !client().IsServing(); }, kPatience));
  EXPECT_EQ(client().Complete(LongRequest(v1::PATH_UNSPECIFIED)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(routed->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(routed->tokens(), expected);
  EXPECT_EQ(asked_directly->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(asked_directly->tokens(), expected);
  ExpectExit(cluster().decode(), kDrained);
}

TEST_F(DrainTest, ThePrefillWorkerFinishesItsHandoff) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(WaitForHandoff());

  cluster().prefill().process().Signal(SIGTERM);

  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  EXPECT_EQ(stream->timeline().path(), v1::PATH_DISAGGREGATED);
  ExpectExit(cluster().prefill(), kDrained);
  EXPECT_TRUE(cluster().WaitForUsableWorkers(1));
  ExpectAnswer(v1::PATH_COLOCATED, v1::ROUTE_REASON_NO_PREFILL_WORKER);
}

TEST_F(DrainTest, TheRouterFinishesItsStreams) {
  const v1::CompleteRequest request = SomeStream(v1::PATH_DISAGGREGATED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(stream->WaitForTokens(1));

  cluster().router().process().Signal(SIGTERM);

  EXPECT_TRUE(WaitUntil([&] { return !client().IsServing(); }, kPatience));
  EXPECT_EQ(client().Complete(LongRequest(v1::PATH_UNSPECIFIED)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  ExpectExit(cluster().router(), kDrained);
  EXPECT_TRUE(cluster().WaitUntilIdle());
}

TEST_F(DrainTest, ASecondSignalEndsWhatIsLeft) {
  const CompletionsClient direct(cluster().decode().address());
  for (ServerProcess* server : {&cluster().router(), &cluster().decode()}) {
    const CompletionsClient& asked = server == &cluster().router() ? client() : direct;
    const auto stream = asked.Stream(LongStream(v1::PATH_COLOCATED));
    ASSERT_TRUE(stream->WaitForTokens(1));
    server->process().Signal(SIGTERM);
    ASSERT_TRUE(WaitUntil([&] { return !asked.IsServing(); }, kPatience));

    const TimePoint again = Clock::System().Now();
    server->process().Signal(SIGTERM);

    EXPECT_EQ(stream->WaitForEnd()->code(), absl::StatusCode::kUnavailable);
    ExpectExit(*server, kCutShort);
    EXPECT_LT(Clock::System().Now() - again, Promised(kRecoveryBegins));
  }
}

TEST_F(DrainTest, ASecondSignalEndsTheHandoffsOfThePrefillWorker) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(WaitForHandoff());

  cluster().prefill().process().Signal(SIGTERM);
  const CompletionsClient prefill(cluster().prefill().address());
  ASSERT_TRUE(WaitUntil([&] { return !prefill.IsServing(); }, kPatience));
  const TimePoint again = Clock::System().Now();
  cluster().prefill().process().Signal(SIGINT);

  ExpectExit(cluster().prefill(), kCutShort);
  EXPECT_LT(Clock::System().Now() - again, Promised(kRecoveryBegins));
  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  EXPECT_EQ(stream->timeline().reason(), v1::ROUTE_REASON_PREFILL_FAILED);
}

class ShortGraceTest : public DrainTest {
 protected:
  std::vector<std::string> WorkerFlags() const override { return {"--drain-grace-ms", "100"}; }
};

TEST_F(ShortGraceTest, EndsWhatIsLeft) {
  const auto stream = client().Stream(LongStream(v1::PATH_COLOCATED));
  ASSERT_TRUE(stream->WaitForTokens(1));

  cluster().decode().process().Signal(SIGTERM);

  const std::optional<absl::Status> end = stream->WaitForEnd(Promised(kRecoveryBegins));
  ASSERT_TRUE(end.has_value());
  // To the router the worker's UNAVAILABLE in the middle of a stream is a stream that broke off.
  EXPECT_EQ(end->code(), absl::StatusCode::kAborted) << *end;
  ExpectExit(cluster().decode(), kCutShort);
}

// F12: workers go one after the other while requests come without a pause, and not one fails.
class TwoOfEachDrainTest : public DrainTest {
 protected:
  int DecodeWorkers() const override { return 2; }
  int PrefillWorkers() const override { return 2; }
};

TEST_F(TwoOfEachDrainTest, NoRequestFails) {
  constexpr int kClients = 4;
  const v1::CompleteRequest request = GreedyRequest(TinyPrompt(8, 900), 60, v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  std::atomic<bool> stop = false;
  std::atomic<int> right = 0;
  std::vector<std::jthread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      const CompletionsClient own(cluster().router().address());
      while (!stop) {
        const absl::StatusOr<v1::CompleteResponse> response = own.Complete(request);
        EXPECT_TRUE(response.ok()) << response.status();
        if (response.ok()) {
          EXPECT_EQ(TokensOf(*response), expected);
          ++right;
        }
      }
    });
  }
  const auto more_are_right = [&] {
    return WaitUntil([&, before = right.load()] { return right >= before + 3 * kClients; },
                     kPatience);
  };
  EXPECT_TRUE(more_are_right());

  // The other one of each kind in the next round.
  for (std::size_t round = 0; round < 2; ++round) {
    for (ServerProcess* server : {&cluster().decode(round), &cluster().prefill(round)}) {
      EXPECT_TRUE(WaitUntil([&] { return !server->IsIdle(); }, kPatience));
      server->process().Signal(SIGTERM);
      ExpectExit(*server, kDrained);
      EXPECT_TRUE(more_are_right());
      EXPECT_EQ(server->Start(), absl::OkStatus());
      EXPECT_TRUE(cluster().WaitForUsableWorkers(4));
    }
  }
  EXPECT_TRUE(more_are_right());
  stop = true;
  clients.clear();  // joins
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

// T46: with nothing to do there is nothing to wait for.
TEST_F(DrainTest, IdleServersEndAtOnce) {
  for (ServerProcess* server : {&cluster().router(), &cluster().decode(), &cluster().prefill()}) {
    server->process().Signal(SIGTERM);
    ExpectExit(*server, kDrained);
  }
}

}  // namespace
}  // namespace baton
