#include "frontend/admin_service.h"

#include <utility>

namespace baton {

AdminService::AdminService(std::function<v1::StatusResponse()> snapshot)
    : snapshot_(std::move(snapshot)) {}

grpc::ServerUnaryReactor* AdminService::Status(grpc::CallbackServerContext* context,
                                               const v1::StatusRequest* /*request*/,
                                               v1::StatusResponse* response) {
  *response = snapshot_();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace baton
