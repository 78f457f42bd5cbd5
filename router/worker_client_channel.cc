#include "router/worker_client_channel.h"

#include <grpcpp/grpcpp.h>

#include "common/status_macros.h"
#include "proto/grpc_runtime.h"
#include "proto/peer_channel.h"

namespace baton {

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeWorkerChannel(const std::string& address,
                                                                 const TlsFiles& tls) {
  KeepGrpcRunning();
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                   MakeChannelCredentials(tls));
  return grpc::CreateCustomChannel(address, credentials, PeerChannelArguments());
}

}  // namespace baton
