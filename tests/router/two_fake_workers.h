#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "baton/v1/completions.grpc.pb.h"
#include "proto/status_conversion.h"
#include "router/router.h"
#include "tests/router/fake_worker.h"
#include "tests/support/health_client.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"

namespace baton {

inline v1::GenerateEvent::Finished Finished(v1::FinishReason reason = v1::FINISH_REASON_LENGTH) {
  v1::GenerateEvent::Finished finished;
  finished.set_finish_reason(reason);
  return finished;
}

// A router over two fake workers, all in this process.
class RouterTest : public testing::Test {
 protected:
  static const Checkpoint& Model() {
    static const TinyCheckpoint model;
    return *model;
  }

  RouterTest()
      : decode_(std::in_place, v1::ROLE_DECODE, IdentityOf(Model())),
        prefill_(std::in_place, v1::ROLE_PREFILL, IdentityOf(Model())) {
    decode_->script = FakeWorker::Answer({3 + 'o', 3 + 'k'}, Finished());
  }

  void StartRouter() {
    std::vector<std::string> decode = more_decode_;
    decode.insert(decode.begin(), decode_->address());
    router_ = *Router::Start(Model(), {.server = {.role = "router"},
                                       .fleet = {.decode = decode,
                                                 .prefill = {prefill_->address()},
                                                 .watch_again = std::chrono::milliseconds(20),
                                                 .dead_after = std::chrono::milliseconds(500)}});
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(router_->address(), grpc::InsecureChannelCredentials(),
                                         arguments);
    stub_ = v1::Completions::NewStub(channel_);
  }

  bool AwaitHealth(const std::string& wanted) {
    return WaitUntil([&] { return HealthOf(channel_, "") == wanted; });
  }

  // Both workers accepted.
  void StartAndAwait() {
    StartRouter();
    ASSERT_TRUE(WaitUntil([this] {
      const v1::StatusResponse status = Status();
      return status.workers_size() == 2 && status.workers(0).problem().empty() &&
             status.workers(1).problem().empty();
    }));
    ASSERT_TRUE(AwaitHealth("SERVING"));
  }

  v1::StatusResponse Status() {
    grpc::ClientContext context;
    v1::StatusResponse response;
    EXPECT_TRUE(v1::Admin::NewStub(channel_)->Status(&context, {}, &response).ok());
    return response;
  }

  static v1::CompleteRequest Prompt(int tokens, v1::Path path = v1::PATH_UNSPECIFIED) {
    v1::CompleteRequest request;
    for (int i = 0; i < tokens; ++i) {
      request.mutable_tokens()->add_ids(70);
    }
    request.set_max_tokens(8);
    request.set_path(path);
    return request;
  }

  struct Answer {
    absl::Status status;
    v1::CompleteResponse response;
  };
  Answer Complete(const v1::CompleteRequest& request,
                  std::chrono::milliseconds deadline = std::chrono::seconds(10)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    Answer answer;
    answer.status = FromGrpcStatus(stub_->Complete(&context, request, &answer.response));
    return answer;
  }

  std::optional<FakeWorker> decode_;
  std::optional<FakeWorker> prefill_;
  std::vector<std::string> more_decode_;
  std::unique_ptr<Router> router_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Completions::Stub> stub_;
};

}  // namespace baton
