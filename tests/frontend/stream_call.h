#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/frontend/completions_harness.h"

namespace baton {

inline v1::CompleteRequest Request(const std::string& text = "prompt") {
  v1::CompleteRequest request;
  request.set_text(text);
  request.set_max_tokens(100);
  return request;
}

// One StreamComplete call in the test's thread.
class Stream {
 public:
  Stream(CompletionsHarness& harness, const v1::CompleteRequest& request)
      : reader_(harness.stub->StreamComplete(&context_, request)) {}
  Stream(CompletionsHarness& harness,
         const v1::CompleteRequest& request,
         std::chrono::milliseconds deadline)
      : reader_((context_.set_deadline(std::chrono::system_clock::now() + deadline),
                 harness.stub->StreamComplete(&context_, request))) {}

  // The next chunk; false at the end.
  bool Read(v1::CompleteChunk& chunk) { return reader_->Read(&chunk); }
  std::vector<v1::CompleteChunk> ReadAll() {
    std::vector<v1::CompleteChunk> all;
    for (v1::CompleteChunk chunk; reader_->Read(&chunk);) {
      all.push_back(chunk);
    }
    return all;
  }
  absl::Status Finish() { return FromGrpcStatus(reader_->Finish()); }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::CompleteChunk>> reader_;
};

}  // namespace baton
