#include "client/completions_client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "baton/v1/completions.grpc.pb.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/status_macros.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

void SetDeadline(grpc::ClientContext& context, std::chrono::milliseconds deadline) {
  context.set_deadline(std::chrono::system_clock::now() + deadline);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CompletionsClient>> CompletionsClient::Create(
    const std::string& server, const TlsFiles& tls) {
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                   MakeChannelCredentials(tls));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);  // the server's own limit gives the clearer error
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return std::unique_ptr<CompletionsClient>(
      new CompletionsClient(grpc::CreateCustomChannel(server, credentials, arguments)));
}

CompletionsClient::CompletionsClient(std::shared_ptr<grpc::Channel> channel)
    : channel_(std::move(channel)) {}

void CompletionsClient::Prepare(grpc::ClientContext& context,
                                std::chrono::milliseconds deadline) const {
  SetDeadline(context, deadline);
  if (!tenant_.empty()) {
    context.AddMetadata("x-baton-tenant", tenant_);
  }
}

absl::StatusOr<v1::CompleteResponse> CompletionsClient::Complete(
    const v1::CompleteRequest& request, std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline);
  v1::CompleteResponse response;
  RETURN_IF_ERROR(
      FromGrpcStatus(v1::Completions::NewStub(channel_)->Complete(&context, request, &response)));
  return response;
}

absl::Status CompletionsClient::StreamComplete(
    const v1::CompleteRequest& request,
    std::chrono::milliseconds deadline,
    const std::function<void(const v1::CompleteChunk&)>& chunk) {
  grpc::ClientContext context;
  Prepare(context, deadline);
  const auto stub = v1::Completions::NewStub(channel_);
  const auto reader = stub->StreamComplete(&context, request);
  for (v1::CompleteChunk next; reader->Read(&next);) {
    chunk(next);
  }
  return FromGrpcStatus(reader->Finish());
}

absl::StatusOr<v1::TokenizeResponse> CompletionsClient::Tokenize(
    const v1::TokenizeRequest& request, std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  SetDeadline(context, deadline);
  v1::TokenizeResponse response;
  RETURN_IF_ERROR(
      FromGrpcStatus(v1::Completions::NewStub(channel_)->Tokenize(&context, request, &response)));
  return response;
}

absl::StatusOr<v1::ListModelsResponse> CompletionsClient::ListModels(
    std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  SetDeadline(context, deadline);
  v1::ListModelsResponse response;
  RETURN_IF_ERROR(
      FromGrpcStatus(v1::Completions::NewStub(channel_)->ListModels(&context, {}, &response)));
  return response;
}

absl::StatusOr<v1::StatusResponse> CompletionsClient::Status(std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  SetDeadline(context, deadline);
  v1::StatusResponse response;
  RETURN_IF_ERROR(FromGrpcStatus(v1::Admin::NewStub(channel_)->Status(&context, {}, &response)));
  return response;
}

}  // namespace baton
