// A router, a decode worker and a prefill worker on machines of their own, and what goes wrong
// between them (faults.md F14 to F17; kvtransfer.md section 7: cut, heal, reset, small MTU, a slow
// network). Whatever happens: the right tokens, blocks free everywhere, and the next request is
// split again without anybody being started again.

#include "tests/support/network.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/faults/fault_fixture.h"

namespace baton {
namespace {

// From a healed network to a split request: the longest pause between two tries to connect, and a
// connection's time.
constexpr std::chrono::milliseconds kReconnected = std::chrono::seconds(4);
// Ejected a second after its last answer, which was up to one poll before the cut.
constexpr std::chrono::milliseconds kEjected = std::chrono::milliseconds(1500);

const absl::StatusOr<std::unique_ptr<TestNetwork>>& TheNetwork() {
  static const absl::StatusOr<std::unique_ptr<TestNetwork>> network = TestNetwork::Create(3);
  return network;
}

class NetworkTest : public FaultTest {
 protected:
  const TestNetwork* Network() const override { return TheNetwork()->get(); }

  void SetUp() override {
    const absl::Status& status = TheNetwork().status();
    if (absl::IsPermissionDenied(status) || absl::IsNotFound(status)) {
      GTEST_SKIP() << "skipped: the network between machines: " << status;
    }
    ASSERT_TRUE(status.ok()) << status;
    FaultTest::SetUp();
  }
  void TearDown() override {
    if (TheNetwork().ok()) {
      // What a test leaves in the way must not be in the next one's.
      EXPECT_EQ(network().Heal(), absl::OkStatus());
      FaultTest::TearDown();
    }
  }

  static TestNetwork& network() { return **TheNetwork(); }
  static const TestHost& router_host() { return network().host(0); }
  static const TestHost& decode_host() { return network().host(1); }
  static const TestHost& prefill_host() { return network().host(2); }

  int KvPort() {
    const std::string address = cluster().prefill().Door("kv");
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
    return port;
  }

  // All is computed, and pieces are on their way.
  bool WaitForPiecesAlone() {
    return WaitUntil(
        [this] {
          const v1::EngineLoad load = cluster().prefill().Load();
          return load.running_sequences() == 0 && load.open_handoffs() > 0 &&
                 load.prefilled_tokens() > 0;
        },
        kPatience);
  }

  // The decode worker computes the prompt itself, or has told the client something.
  bool HasBegunToRecover(const StreamedCompletion& stream) {
    return cluster().decode().Load().prefilled_tokens() > 0 || !stream.tokens().empty();
  }

  // The request was caught in a handoff whose network has just failed.
  void ExpectRecovery(StreamedCompletion& stream, const Tokens& expected) {
    const TimePoint failed = Clock::System().Now();
    EXPECT_TRUE(WaitUntil([&] { return HasBegunToRecover(stream); }, Promised(kRecoveryBegins)));
    Print("recovery begins after", failed);
    EXPECT_EQ(stream.WaitForEnd(), absl::OkStatus());
    EXPECT_EQ(stream.tokens(), expected);
    EXPECT_EQ(stream.timeline().path(), v1::PATH_COLOCATED);
    EXPECT_EQ(stream.timeline().reason(), v1::ROUTE_REASON_PREFILL_FAILED);
    EXPECT_TRUE(WaitUntil([&] { return cluster().decode().IsIdle(); }, Promised(kBlocksFree)));
    // Nobody can tell the prefill side.
    EXPECT_TRUE(
        WaitUntil([&] { return cluster().prefill().IsIdle(); }, Promised(kLease + kBlocksFree)));
  }

  // T38, T39: nobody was restarted.
  void ExpectSplitSoon() {
    const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
    const Tokens expected = Expected(request);
    const TimePoint healed = Clock::System().Now();
    bool split = false;
    while (!split && Clock::System().Now() - healed < Promised(kReconnected)) {
      const absl::StatusOr<v1::CompleteResponse> response = client().Complete(request);
      ASSERT_TRUE(response.ok()) << response.status();
      EXPECT_EQ(TokensOf(*response), expected);
      split = response->timeline().path() == v1::PATH_DISAGGREGATED;
    }
    Print("split again after", healed);
    EXPECT_TRUE(split);
    EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
  }

  static void Print(const std::string& what, TimePoint since) {
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::System().Now() - since);
    std::printf("%s %lld ms\n", what.c_str(), static_cast<long long>(ms.count()));
  }
};

// Every packet between the two workers is lost, with the prompt being computed.
TEST_F(NetworkTest, WorkersCutOffWhilePiecesStream) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(WaitForHandoff());

  ASSERT_EQ(network().Cut(decode_host(), prefill_host()), absl::OkStatus());

  ExpectRecovery(*stream, expected);
  // The router reaches both: the worker is not at fault.
  EXPECT_TRUE(cluster().WaitForUsableWorkers(2));
  const absl::StatusOr<v1::CompleteResponse> meanwhile = client().Complete(request);
  ASSERT_TRUE(meanwhile.ok()) << meanwhile.status();
  EXPECT_EQ(TokensOf(*meanwhile), expected);
  ASSERT_EQ(network().Heal(), absl::OkStatus());
  ExpectSplitSoon();
}

}  // namespace
}  // namespace baton
