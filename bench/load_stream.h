#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>

#include "baton/v1/completions.grpc.pb.h"
#include "bench/load_request.h"

namespace baton {

// One streamed completion: notes in its record when each token came. It deletes itself when the
// call has ended.
//
// Its methods run on gRPC's threads, one at a time.
class LoadStream final : public grpc::ClientReadReactor<v1::CompleteChunk> {
 public:
  // `record`, which outlives the call, is the caller's again once `ended` has been called.
  LoadStream(v1::CompleteRequest request,
             TimePoint start,
             RequestRecord& record,
             std::function<void()> ended);

  // Once. The call ends by itself or `timeout` from now.
  void Start(v1::Completions::Stub& stub, Duration timeout);

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void Note(const v1::CompleteChunk& chunk, Duration now);

  const v1::CompleteRequest request_;
  const TimePoint start_;  // of the run
  RequestRecord& record_;
  const std::function<void()> ended_;
  grpc::ClientContext context_;
  v1::CompleteChunk chunk_;
};

}  // namespace baton
