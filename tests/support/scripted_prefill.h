#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "baton/v1/worker.grpc.pb.h"
#include "tests/support/two_workers.h"

namespace baton {

// Answers Prefill as a test tells it to; stands for workers that misbehave. Thread-safe once
// serving.
class ScriptedPrefill final : public v1::PrefillWorker::Service {
 public:
  using Script = std::function<grpc::Status(
      grpc::ServerContext&, const v1::PrefillRequest&, grpc::ServerWriter<v1::PrefillEvent>&)>;
  explicit ScriptedPrefill(Script script) : script_(std::move(script)), served_(this) {}

  grpc::Status Prefill(grpc::ServerContext* context,
                       const v1::PrefillRequest* request,
                       grpc::ServerWriter<v1::PrefillEvent>* writer) override {
    return script_(*context, *request, *writer);
  }

  v1::PrefillCandidate candidate() const {
    v1::PrefillCandidate candidate;
    candidate.set_address(served_.address());
    return candidate;
  }

 private:
  const Script script_;
  ServedService served_;
};

}  // namespace baton
