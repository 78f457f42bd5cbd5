#pragma once

#include <functional>

#include "baton/v1/worker.grpc.pb.h"

namespace baton {

// baton.v1.Admin over a function that takes the snapshot. Thread-safe when the function is; it must
// not block.
class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(std::function<v1::StatusResponse()> snapshot);

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const v1::StatusRequest* request,
                                   v1::StatusResponse* response) override;

 private:
  const std::function<v1::StatusResponse()> snapshot_;
};

}  // namespace baton
