// Calls that are silent for long (T48).

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "baton/v1/completions.grpc.pb.h"
#include "proto/status_conversion.h"
#include "tests/support/cluster.h"
#include "tests/support/failpoint_control.h"
#include "tests/support/patience.h"
#include "tests/support/prompts.h"

namespace baton {
namespace {

// A client that pings twenty times a second, with a call for one token that says nothing for
// `silence`, spent at the failpoint `where`.
void ExpectPatience(const std::string& where, std::chrono::milliseconds silence) {
  constexpr int kPingMs = 50;
  FailpointControl failpoints;
  // The pause holds the engine's thread: that is no failure here.
  auto cluster = Cluster::Start(
      {.worker_flags = {"--stalled-after-ms", "600000"}, .failpoint_folder = failpoints.folder()});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto stub = v1::Completions::NewStub(grpc::CreateCustomChannel(
      (*cluster)->router().address(), grpc::InsecureChannelCredentials(), arguments));
  failpoints.Arm(where, absl::StrCat("delay 1 ", silence.count()));

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + silence + kPatience);
  v1::CompleteResponse response;
  const grpc::Status status = stub->Complete(
      &context, GreedyRequest(TinyPrompt(1, 600), 1, v1::PATH_DISAGGREGATED), &response);

  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.usage().completion_tokens(), 1u);
  EXPECT_EQ(response.timeline().path(), v1::PATH_DISAGGREGATED);
  EXPECT_TRUE(failpoints.WasHit(where));
  EXPECT_GE(FromProtoDuration(response.timeline().total()), silence);
}

// It is not turned away for it: gRPC's servers by default send such clients "too many pings" after
// the second one.
TEST(Keepalive, AClientThatPingsALotMayWait) {
  ExpectPatience("decode.finishing", std::chrono::seconds(4));
}

// The row's minute, in which the prefill worker computes and says nothing to anybody: to the
// client, to the router and to the decode worker, which ping each other more than twice a second.
TEST(Keepalive, AMinuteOfPrefillPasses) {
  ExpectPatience("engine.compute", std::chrono::seconds(60));
}

}  // namespace
}  // namespace baton
