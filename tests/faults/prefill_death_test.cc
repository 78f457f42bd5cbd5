// kill -9 of a prefill worker, at every moment (faults.md F1, F2, F3, F8).

#include <gtest/gtest.h>
#include <signal.h>

#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/faults/fault_fixture.h"

namespace baton {
namespace {

class PrefillDeathTest : public FaultTest, public testing::WithParamInterface<bool> {
 protected:
  bool OnExampleModel() const override { return GetParam(); }

  // Recovery has begun: the decode worker computes the prompt itself, or has told the client
  // something.
  bool HasBegunToRecover(const StreamedCompletion& stream) {
    return cluster().decode().Load().prefilled_tokens() > 0 || !stream.tokens().empty();
  }
};

INSTANTIATE_TEST_SUITE_P(Tiny, PrefillDeathTest, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Example, PrefillDeathTest, testing::Values(true));

// F1, T33, B51; then T36: colocated while there is none; then F8, B49: split again once one is back
// at the address.
TEST_P(PrefillDeathTest, TheDecodeWorkerTakesOver) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(WaitForHandoff());

  cluster().prefill().process().Kill();

  EXPECT_TRUE(WaitUntil([&] { return HasBegunToRecover(*stream); }, Promised(kRecoveryBegins)));
  const CompletionsClient decode(cluster().decode().address());
  EXPECT_TRUE(decode.IsServing());
  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  EXPECT_EQ(stream->timeline().path(), v1::PATH_COLOCATED);
  EXPECT_EQ(stream->timeline().reason(), v1::ROUTE_REASON_PREFILL_FAILED);
  EXPECT_TRUE(WaitUntil([&] { return cluster().decode().IsIdle(); }, Promised(kBlocksFree)));

  EXPECT_TRUE(cluster().WaitForUsableWorkers(1));
  ExpectAnswer(v1::PATH_COLOCATED, v1::ROUTE_REASON_NO_PREFILL_WORKER);
  EXPECT_TRUE(decode.IsServing() && client().IsServing());

  ASSERT_EQ(cluster().prefill().Start(), absl::OkStatus());
  ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_TRUE(decode.IsServing() && client().IsServing());
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

TEST_P(PrefillDeathTest, AForcedSplitIsUnavailable) {
  const auto stream = client().Stream(LongRequest(v1::PATH_DISAGGREGATED));
  ASSERT_TRUE(WaitForHandoff());

  cluster().prefill().process().Kill();

  const std::optional<absl::Status> end = stream->WaitForEnd(Promised(kRecoveryBegins));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code(), absl::StatusCode::kUnavailable) << *end;
  EXPECT_EQ(stream->tokens(), Tokens{});
  EXPECT_TRUE(WaitUntil([&] { return cluster().decode().IsIdle(); }, Promised(kBlocksFree)));
  // With none alive a forced split is refused before anything is leased.
  EXPECT_TRUE(cluster().WaitForUsableWorkers(1));
  EXPECT_EQ(client().Complete(LongRequest(v1::PATH_DISAGGREGATED)).status().code(),
            absl::StatusCode::kUnavailable);
}

// T33: other requests of the decode worker do not notice.
TEST_P(PrefillDeathTest, RunningStreamsGoOn) {
  const v1::CompleteRequest other = GreedyRequest(TinyPrompt(3, 40), 200, v1::PATH_COLOCATED);
  const Tokens expected = Expected(other);
  const auto running = client().Stream(other);
  const auto stream = client().Stream(LongRequest(v1::PATH_UNSPECIFIED));
  ASSERT_TRUE(WaitForHandoff());

  cluster().prefill().process().Kill();

  EXPECT_EQ(running->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(running->tokens(), expected);
  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
}

// The prompt's log probabilities came half-way, or not at all: the client gets each of them once.
TEST_P(PrefillDeathTest, EchoAndLogprobsAreWhole) {
  v1::CompleteRequest request = LongRequest(v1::PATH_COLOCATED);
  request.mutable_sampling()->set_temperature(0.8f);
  request.mutable_sampling()->set_seed(7);
  request.set_echo(true);
  request.set_logprobs(3);
  request.set_n(2);
  const absl::StatusOr<v1::CompleteResponse> expected = client().Complete(request);
  ASSERT_TRUE(expected.ok()) << expected.status();
  request.clear_path();
  absl::StatusOr<v1::CompleteResponse> answer;
  std::jthread call([&] { answer = client().Complete(request); });
  EXPECT_TRUE(WaitForHandoff());

  cluster().prefill().process().Kill();

  call.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->timeline().reason(), v1::ROUTE_REASON_PREFILL_FAILED);
  ASSERT_EQ(answer->choices_size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(answer->choices(i).logprobs().tokens_size(), request.tokens().ids_size() + 32);
    EXPECT_EQ(answer->choices(i).SerializeAsString(), expected->choices(i).SerializeAsString());
  }
  EXPECT_TRUE(WaitUntil([&] { return cluster().decode().IsIdle(); }, Promised(kBlocksFree)));
}

// F3: once the blocks are adopted nothing depends on where they came from.
TEST_P(PrefillDeathTest, AnAdoptedRequestIsUnaffected) {
  const v1::CompleteRequest request =
      GreedyRequest(TinyPrompt(4, 600), 150, v1::PATH_DISAGGREGATED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(stream->WaitForTokens(3));

  cluster().prefill().process().Kill();

  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  EXPECT_EQ(stream->timeline().path(), v1::PATH_DISAGGREGATED);
}

class TwoPrefillWorkersTest : public PrefillDeathTest {
 protected:
  int PrefillWorkers() const override { return 2; }
};
INSTANTIATE_TEST_SUITE_P(Tiny, TwoPrefillWorkersTest, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Example, TwoPrefillWorkersTest, testing::Values(true));

// F1: with another candidate the request stays split.
TEST_P(TwoPrefillWorkersTest, TheOtherTakesOver) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_DISAGGREGATED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  const auto busy = [&](std::size_t number) {
    const v1::EngineLoad load = cluster().prefill(number).Load();
    return load.running_sequences() > 0 && load.prefilled_tokens() > 0;
  };
  ASSERT_TRUE(WaitUntil([&] { return busy(0) || busy(1); }, kPatience));
  const std::size_t victim = busy(0) ? 0 : 1;

  cluster().prefill(victim).process().Kill();

  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  EXPECT_EQ(stream->timeline().path(), v1::PATH_DISAGGREGATED);
  EXPECT_EQ(stream->timeline().prefill_worker(), cluster().prefill(1 - victim).address());
  EXPECT_EQ(cluster().decode().Load().prefilled_tokens(), 0u);
  EXPECT_TRUE(WaitUntil(
      [&] { return cluster().decode().IsIdle() && cluster().prefill(1 - victim).IsIdle(); },
      Promised(kBlocksFree)));
}

class PrefillDeathLoopTest : public PrefillDeathTest {};
INSTANTIATE_TEST_SUITE_P(Tiny, PrefillDeathLoopTest, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Example, PrefillDeathLoopTest, testing::Values(true));

// Killed at moments from the first call to the last token: always the right tokens, never a block
// lost.
TEST_P(PrefillDeathLoopTest, RandomMoments) {
  constexpr int kRounds = 20;
  constexpr std::uint64_t kSeed = 20261129;
  const v1::CompleteRequest request =
      GreedyRequest(TinyPrompt(5, OnExampleModel() ? 700 : 5000), 16, v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  const TimePoint begin = Clock::System().Now();
  ASSERT_TRUE(client().Complete(request).ok());
  const auto undisturbed =
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::System().Now() - begin).count();
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < kRounds; ++round) {
    const std::chrono::microseconds moment(
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(undisturbed)));
    SCOPED_TRACE(
        absl::StrCat("seed ", kSeed, ", round ", round, ", killed after us: ", moment.count()));
    const auto stream = client().Stream(request);
    stream->WaitForEnd(moment);

    cluster().prefill().process().Kill();

    ASSERT_EQ(stream->WaitForEnd(), absl::OkStatus());
    EXPECT_EQ(stream->tokens(), expected);
    EXPECT_TRUE(WaitUntil([&] { return cluster().decode().IsIdle(); }, Promised(kBlocksFree)));
    ASSERT_EQ(cluster().prefill().Start(), absl::OkStatus());
    ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  }
}

// F8, T30, B47: a new process at an old address works at once, and again and again.
TEST_P(PrefillDeathLoopTest, RestartsAtOneAddress) {
  constexpr int kRounds = 10;
  const v1::CompleteRequest request = GreedyRequest(TinyPrompt(6, 600), 8, v1::PATH_DISAGGREGATED);
  const Tokens expected = Expected(request);
  std::string instance;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const absl::StatusOr<v1::CompleteResponse> response = client().Complete(request);

    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(TokensOf(*response), expected);
    const auto description = cluster().prefill().Describe();
    ASSERT_TRUE(description.ok()) << description.status();
    EXPECT_NE(description->instance_id(), instance);
    instance = description->instance_id();
    ASSERT_EQ(cluster().prefill().Start(), absl::OkStatus());
    ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  }
}

}  // namespace
}  // namespace baton
