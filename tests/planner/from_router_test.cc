// baton-plan --from-router, against the Admin service of a router in this process.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/check.h"
#include "proto/grpc_runtime.h"

namespace baton {
namespace {

using testing::HasSubstr;

// Answers Admin.Status with what the test has made.
class FakeRouter final : public v1::Admin::Service {
 public:
  FakeRouter() {
    KeepGrpcRunning();
    status.set_role(v1::ROLE_ROUTER);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    BATON_CHECK(server_ != nullptr);
  }
  ~FakeRouter() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  v1::StatusResponse status;  // set before it is asked

 private:
  grpc::Status Status(grpc::ServerContext*,
                      const v1::StatusRequest*,
                      v1::StatusResponse* response) override {
    *response = status;
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

void AddRates(v1::StatusResponse& status) {
  v1::Rates& rates = *status.mutable_rates();
  rates.set_version(1);
  rates.set_block_tokens(16);
  rates.set_kv_bytes_per_token(23'040);
  rates.set_layers(30);
  rates.set_max_batch_tokens(256);
  for (const double tokens : {128.0, 2048.0}) {
    v1::WorkerRates::PrefillRate& rate = *rates.add_prefill();
    rate.set_prompt_tokens(tokens);
    rate.set_tokens_per_second(900);
  }
  for (const double batch : {1.0, 8.0}) {
    v1::WorkerRates::DecodeStep& step = *rates.add_decode();
    step.set_batch(batch);
    step.set_depth_tokens(512);
    step.set_step_seconds(0.01 * batch);
  }
  v1::WorkerRates::TransportRate& transport = *rates.add_transports();
  transport.set_name("mapped");
  transport.set_fixed_seconds(0);
  transport.set_bytes_per_second(5e9);
}

struct Outcome {
  int code = -1;
  std::string text;  // both outputs
};

Outcome RunPlan(const std::string& arguments) {
  std::FILE* pipe = popen(absl::StrCat(BATON_PROGRAM, " ", arguments, " 2>&1").c_str(), "r");
  BATON_CHECK(pipe != nullptr);
  Outcome outcome;
  char buffer[4096];
  for (std::size_t count = 0; (count = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    outcome.text.append(buffer, count);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

TEST(FromRouter, PlansWithTheRatesOfTheFleet) {
  FakeRouter router;
  AddRates(router.status);
  const Outcome outcome = RunPlan(absl::StrCat("crossover --from-router ", router.address()));
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("measured here, over mapped"));
}

TEST(FromRouter, SaysWhatARouterHasNotSeenYet) {
  FakeRouter router;
  router.status.mutable_crossover()->set_why_unknown("no worker has decoded yet");
  const Outcome outcome = RunPlan(absl::StrCat("crossover --from-router ", router.address()));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.text, HasSubstr("no worker has decoded yet"));
}

TEST(FromRouter, RefusesWhatIsNoRouterAndWhatIsNoRate) {
  FakeRouter router;
  router.status.set_role(v1::ROLE_DECODE);
  Outcome outcome = RunPlan(absl::StrCat("crossover --from-router ", router.address()));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.text, HasSubstr("no router"));

  router.status.set_role(v1::ROLE_ROUTER);
  AddRates(router.status);
  router.status.mutable_rates()->mutable_decode(1)->set_step_seconds(-1);
  outcome = RunPlan(absl::StrCat("crossover --from-router ", router.address()));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.text, HasSubstr("decode[1].step_seconds"));
}

TEST(FromRouter, SaysThatNobodyAnswers) {
  const Outcome outcome = RunPlan("crossover --from-router 127.0.0.1:1");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.text, HasSubstr("127.0.0.1:1"));
}

TEST(FromRouter, WrongUsageIsExitTwo) {
  for (const char* arguments :
       {"crossover --from-router nowhere", "crossover --from-router a:1 --rates b.json",
        "crossover --tls-ca a.pem", "crossover --from-router a:1 --tls-key a.pem"}) {
    EXPECT_EQ(RunPlan(arguments).code, 2) << arguments;
  }
}

}  // namespace
}  // namespace baton
