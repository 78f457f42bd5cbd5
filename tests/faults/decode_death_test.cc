// kill -9 of the decode worker (faults.md F4, F5).

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "tests/faults/fault_fixture.h"

namespace baton {
namespace {

class DecodeDeathTest : public FaultTest {
 protected:
  void ExpectPrefillIsFreed(std::chrono::milliseconds patience) {
    EXPECT_TRUE(WaitUntil([this] { return cluster().prefill().IsIdle(); }, Promised(patience)));
  }

  // A new process at the old address serves as the old one did, and the router says so.
  void ExpectServiceAfterRestart() {
    EXPECT_TRUE(cluster().WaitForUsableWorkers(1));
    EXPECT_TRUE(WaitUntil([this] { return !client().IsServing(); }, kPatience));
    EXPECT_EQ(client().Complete(LongRequest(v1::PATH_UNSPECIFIED)).status().code(),
              absl::StatusCode::kUnavailable);

    ASSERT_EQ(cluster().decode().Start(), absl::OkStatus());
    ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
    EXPECT_TRUE(WaitUntil([this] { return client().IsServing(); }, kPatience));
    ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);
    EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
  }
};

// F4, T30: nothing was streamed yet.
TEST_F(DecodeDeathTest, InTheMiddleOfAHandoff) {
  const auto stream = client().Stream(LongRequest(v1::PATH_UNSPECIFIED));
  ASSERT_TRUE(WaitForHandoff());

  cluster().decode().process().Kill();

  const std::optional<absl::Status> end = stream->WaitForEnd(Promised(kRecoveryBegins));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code(), absl::StatusCode::kUnavailable) << *end;
  EXPECT_EQ(stream->tokens(), Tokens{});
  ExpectPrefillIsFreed(kLease);
  ExpectServiceAfterRestart();
}

// F5: what was streamed is right, and the end is not taken for a good one.
TEST_F(DecodeDeathTest, InTheMiddleOfAStream) {
  constexpr std::size_t kSeen = 10;
  for (const v1::Path path : {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED}) {
    SCOPED_TRACE(v1::Path_Name(path));
    const v1::CompleteRequest request = LongStream(path);
    const auto stream = client().Stream(request);
    ASSERT_TRUE(stream->WaitForTokens(kSeen));

    cluster().decode().process().Kill();

    const std::optional<absl::Status> end = stream->WaitForEnd(Promised(kRecoveryBegins));
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->code(), absl::StatusCode::kAborted) << *end;
    const Tokens seen = stream->tokens();
    const Tokens expected = Expected(request);
    ASSERT_LT(seen.size(), expected.size());
    EXPECT_TRUE(std::equal(seen.begin(), seen.end(), expected.begin()));
    ExpectPrefillIsFreed(kBlocksFree);
    ASSERT_EQ(cluster().decode().Start(), absl::OkStatus());
    ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  }
}

class TwoDecodeWorkersTest : public DecodeDeathTest {
 protected:
  int DecodeWorkers() const override { return 2; }

  // The one that the only request is at.
  std::size_t Busy() {
    std::size_t busy = 0;
    EXPECT_TRUE(WaitUntil(
        [&] {
          for (busy = 0; busy < 2; ++busy) {
            if (cluster().decode(busy).Load().open_handoffs() > 0) {
              return true;
            }
          }
          return false;
        },
        kPatience));
    return busy;
  }
};

// F4: no token has been streamed, so the other one answers, and the client sees only time pass.
TEST_F(TwoDecodeWorkersTest, TheOtherTakesOverADeadOnesRequest) {
  const auto stream = client().Stream(LongRequest(v1::PATH_UNSPECIFIED));
  ASSERT_TRUE(WaitForHandoff());
  const std::size_t victim = Busy();

  cluster().decode(victim).process().Kill();

  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), Expected(LongRequest(v1::PATH_UNSPECIFIED)));
  EXPECT_EQ(stream->timeline().decode_worker(), cluster().decode(1 - victim).address());
  ExpectPrefillIsFreed(kBlocksFree);
  EXPECT_TRUE(WaitUntil([&] { return cluster().decode(1 - victim).IsIdle(); }, kPatience));
}

// F10: the same for one that is stopped, which only its silence tells.
TEST_F(TwoDecodeWorkersTest, TheOtherTakesOverAStoppedOnesRequest) {
  const auto stream = client().Stream(LongRequest(v1::PATH_UNSPECIFIED));
  ASSERT_TRUE(WaitForHandoff());
  const std::size_t victim = Busy();

  cluster().decode(victim).process().Signal(SIGSTOP);

  EXPECT_TRUE(WaitUntil(
      [&] {
        return cluster().decode(1 - victim).Load().open_handoffs() > 0 || !stream->tokens().empty();
      },
      Promised(kRecoveryBegins)));
  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), Expected(LongRequest(v1::PATH_UNSPECIFIED)));
  cluster().decode(victim).process().Signal(SIGCONT);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kLease + kBlocksFree)));
}

}  // namespace
}  // namespace baton
