#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "baton/v1/completions.grpc.pb.h"
#include "frontend/completions_service.h"
#include "proto/grpc_runtime.h"
#include "proto/status_conversion.h"
#include "tests/frontend/fake_generator.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"

namespace baton {

// A completions service over a fake generator behind a real gRPC server, and a stub of it.
struct CompletionsHarness {
  // The model is the same for all tests of a program; it takes longest to make.
  static const TinyCheckpoint& SharedModel() {
    static const TinyCheckpoint model({.context_tokens = 1024});
    return model;
  }

  explicit CompletionsHarness(CompletionsOptions options = {},
                              const grpc::ChannelArguments& arguments = {})
      : service(*SharedModel(), generator, std::move(options)) {
    KeepGrpcRunning();
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(16 << 20);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    grpc::ChannelArguments own = arguments;
    own.SetMaxSendMessageSize(-1);
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    address = absl::StrCat("127.0.0.1:", port);
    stub = v1::Completions::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own));
  }

  ~CompletionsHarness() { server->Shutdown(std::chrono::system_clock::now()); }

  struct Answer {
    absl::Status status;
    v1::CompleteResponse response;
  };

  Answer Complete(const v1::CompleteRequest& request) {
    grpc::ClientContext context;
    Answer answer;
    answer.status = FromGrpcStatus(stub->Complete(&context, request, &answer.response));
    return answer;
  }

  // Every new generation answers with the bytes of `text`, one token each, and ends by itself.
  void AnswerWith(const std::string& text) {
    generator.on_start = [text](FakeGenerator::Fake& fake) {
      fake.Tokens(ByteTokens(text));
      fake.Finish(v1::FINISH_REASON_LENGTH);
    };
  }

  // In the tiny vocabulary the ids 3 to 258 are the bytes.
  static std::vector<TokenId> ByteTokens(std::string_view text) {
    std::vector<TokenId> ids;
    for (const char byte : text) {
      ids.emplace_back(3u + static_cast<std::uint8_t>(byte));
    }
    return ids;
  }

  FakeGenerator generator;
  CompletionsService service;
  std::unique_ptr<grpc::Server> server;
  std::string address;
  std::unique_ptr<v1::Completions::Stub> stub;
};

}  // namespace baton
