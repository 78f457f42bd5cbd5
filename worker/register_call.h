#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "baton/v1/worker.grpc.pb.h"
#include "worker/report_hub.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace baton {

// One Fleet.Register call to a router, fed by a ReportHub.
//
// Thread-safe. May be let go of at any time, which does not end the call.
class RegisterCall {
 public:
  // Called on gRPC's threads, one at a time: they post.
  struct Events {
    std::function<void(const v1::RouterNotice&)> on_notice;
    std::function<void(const absl::Status&)> on_end;  // exactly once, last
  };

  // `hub` outlives the call, and the channel of `stub` does too.
  static std::unique_ptr<RegisterCall> Begin(v1::Fleet::Stub& stub, ReportHub& hub, Events events);

  // The end follows soon.
  void Cancel();

 private:
  explicit RegisterCall(std::shared_ptr<grpc::ClientContext> context);

  const std::shared_ptr<grpc::ClientContext> context_;  // shared with the call under way
};

}  // namespace baton
