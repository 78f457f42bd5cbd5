// Calls that are silent for long (T48).

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>

#include "baton/v1/completions.grpc.pb.h"
#include "tests/support/cluster.h"
#include "tests/support/failpoint_control.h"
#include "tests/support/patience.h"
#include "tests/support/prompts.h"

namespace baton {
namespace {

// A client that pings twenty times a second is not turned away for it, though its call says nothing
// for seconds: gRPC's servers by default send such clients "too many pings" after the second one.
TEST(Keepalive, AClientThatPingsALotMayWait) {
  constexpr int kPingMs = 50;
  FailpointControl failpoints;
  auto cluster = Cluster::Start({.failpoint_folder = failpoints.folder()});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto stub = v1::Completions::NewStub(grpc::CreateCustomChannel(
      (*cluster)->router().address(), grpc::InsecureChannelCredentials(), arguments));
  failpoints.Arm("decode.finishing", "delay 1 4000");

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  v1::CompleteResponse response;
  const grpc::Status status = stub->Complete(
      &context, GreedyRequest(TinyPrompt(1, 600), 4, v1::PATH_UNSPECIFIED), &response);

  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(failpoints.WasHit("decode.finishing"));
}

}  // namespace
}  // namespace baton
