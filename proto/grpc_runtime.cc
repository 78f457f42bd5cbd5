#include "proto/grpc_runtime.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "absl/synchronization/notification.h"
#include "baton/v1/worker.grpc.pb.h"

namespace baton {
namespace {

// A channel refers to the callback threads from its first call on; this one makes a call whose
// deadline is long over.
struct KeptChannel {
  KeptChannel()
      : stub(v1::Admin::NewStub(
            grpc::CreateChannel("ipv4:127.0.0.1:1", grpc::InsecureChannelCredentials()))) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::time_point());
    const v1::StatusRequest request;
    v1::StatusResponse response;
    absl::Notification done;
    stub->async()->Status(&context, &request, &response,
                          [&done](const grpc::Status&) { done.Notify(); });
    done.WaitForNotification();
  }
  const std::unique_ptr<v1::Admin::Stub> stub;
};

// Never destroyed, on purpose. An atomic, so that the compiler keeps the pointer although nobody
// reads it: leak checkers then see that the object is in use.
std::atomic<KeptChannel*> kept_channel{nullptr};

}  // namespace

void KeepGrpcRunning() {
  static const bool running = [] {
    grpc_init();
    kept_channel.store(std::make_unique<KeptChannel>().release());
    return true;
  }();
  static_cast<void>(running);
}

}  // namespace baton
