#include "router/worker_client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "baton/v1/worker.grpc.pb.h"
#include "common/status_macros.h"
#include "proto/grpc_runtime.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

constexpr int kFirstReconnectMs = 50;
constexpr int kSlowestReconnectMs = 500;
// Despite its name the minimum of the back-off is how long a try to connect may take.
constexpr int kConnectMs = 1000;

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kSlowestReconnectMs);
  // The log probabilities of a long prompt are one message of several MiB.
  arguments.SetMaxReceiveMessageSize(-1);
  // Workers are reached directly, whatever http_proxy says.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Otherwise two clients of one address share a connection and its back-off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

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
      new WorkerClient(grpc::CreateCustomChannel(address, credentials, Arguments())));
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
