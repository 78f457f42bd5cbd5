#include "router/worker_client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "baton/v1/worker.grpc.pb.h"
#include "common/status_macros.h"
#include "proto/grpc_runtime.h"
#include "proto/peer_channel.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

struct DescribeCall {
  std::unique_ptr<v1::Worker::Stub> stub;
  grpc::ClientContext context;
  v1::DescribeRequest request;
  v1::WorkerDescription response;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerClient>> WorkerClient::Create(const std::string& address,
                                                                   const TlsFiles& tls) {
  KeepGrpcRunning();
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                   MakeChannelCredentials(tls));
  return std::unique_ptr<WorkerClient>(
      new WorkerClient(grpc::CreateCustomChannel(address, credentials, PeerChannelArguments())));
}

WorkerClient::WorkerClient(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

void WorkerClient::Describe(std::chrono::milliseconds deadline, Described done) {
  auto call =
      std::make_shared<DescribeCall>();  // shared with the callback, which outlives this function
  call->stub = v1::Worker::NewStub(channel_);
  call->context.set_deadline(std::chrono::system_clock::now() + deadline);
  call->stub->async()->Describe(&call->context, &call->request, &call->response,
                                [call, done = std::move(done)](const grpc::Status& status) {
                                  if (status.ok()) {
                                    done(std::move(call->response));
                                  } else {
                                    done(FromGrpcStatus(status));
                                  }
                                });
}

}  // namespace baton
