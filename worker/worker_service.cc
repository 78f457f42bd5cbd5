#include "worker/worker_service.h"

#include <grpcpp/server_context.h>

namespace baton {

grpc::ServerUnaryReactor* WorkerService::Describe(grpc::CallbackServerContext* context,
                                                  const v1::DescribeRequest*,
                                                  v1::WorkerDescription* response) {
  *response = core_.Describe();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace baton
