#pragma once

#include "baton/v1/worker.grpc.pb.h"
#include "worker/worker_core.h"

namespace baton {

// baton.v1.Worker over a WorkerCore, which must outlive it. Thread-safe.
class WorkerService final : public v1::Worker::CallbackService {
 public:
  explicit WorkerService(WorkerCore& core) : core_(core) {}

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::WorkerDescription* response) override;
  grpc::ServerBidiReactor<v1::RouterNotice, v1::WorkerReport>* Watch(
      grpc::CallbackServerContext* context) override;

 private:
  WorkerCore& core_;
};

}  // namespace baton
