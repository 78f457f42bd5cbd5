// kill -9 of the router (faults.md F6) and a router that is stopped (F11).

#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <vector>

#include "tests/faults/fault_fixture.h"

namespace baton {
namespace {

class RouterDeathTest : public FaultTest {
 protected:
  // One request before its first token and one in its stream, by each path.
  std::vector<std::unique_ptr<StreamedCompletion>> StartRequests() {
    std::vector<std::unique_ptr<StreamedCompletion>> streams;
    for (const v1::Path path : {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED}) {
      streams.push_back(client().Stream(LongStream(path)));
      EXPECT_TRUE(streams.back()->WaitForTokens(1));
    }
    for (const v1::Path path : {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED}) {
      streams.push_back(client().Stream(LongRequest(path)));
    }
    EXPECT_TRUE(WaitForHandoff());
    return streams;
  }
};

TEST_F(RouterDeathTest, WorkersFreeWhatItAskedFor) {
  const auto streams = StartRequests();
  ASSERT_FALSE(HasFailure());

  cluster().router().process().Kill();

  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
  for (const auto& stream : streams) {
    EXPECT_EQ(stream->WaitForEnd()->code(), absl::StatusCode::kUnavailable);
  }
  // A new one knows everything it needs from the workers.
  ASSERT_EQ(cluster().router().Start(), absl::OkStatus());
  ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  // The client's channel waits a moment between its tries to connect.
  ASSERT_TRUE(WaitUntil([this] { return client().IsServing(); }, kPatience));
  ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);
}

TEST_F(RouterDeathTest, AStoppedRouterHoldsNobodyPastTheDeadline) {
  ExpectAnswer(v1::PATH_DISAGGREGATED,
               v1::ROUTE_REASON_PREFILL_QUICKER);  // the client is connected
  cluster().router().process().Signal(SIGSTOP);

  const auto response =
      client().Complete(LongRequest(v1::PATH_UNSPECIFIED), std::chrono::milliseconds(300));

  EXPECT_EQ(response.status().code(), absl::StatusCode::kDeadlineExceeded);
  cluster().router().process().Signal(SIGCONT);
  ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

}  // namespace
}  // namespace baton
