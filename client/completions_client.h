#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "baton/v1/completions.pb.h"
#include "baton/v1/worker.pb.h"
#include "proto/tls_credentials.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace baton {

// Blocking calls of one server, for a command line. Errors carry the server's code, message and
// details.
//
// Not thread-safe.
class CompletionsClient {
 public:
  // `server` is host:port. Errors are those of the TLS files; connecting happens with the first
  // call.
  static absl::StatusOr<std::unique_ptr<CompletionsClient>> Create(const std::string& server,
                                                                   const TlsFiles& tls);

  absl::StatusOr<v1::CompleteResponse> Complete(const v1::CompleteRequest& request,
                                                std::chrono::milliseconds deadline);
  // Every chunk goes to `chunk` as it comes.
  absl::Status StreamComplete(const v1::CompleteRequest& request,
                              std::chrono::milliseconds deadline,
                              const std::function<void(const v1::CompleteChunk&)>& chunk);
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request,
                                                std::chrono::milliseconds deadline);
  absl::StatusOr<v1::ListModelsResponse> ListModels(std::chrono::milliseconds deadline);
  absl::StatusOr<v1::StatusResponse> Status(std::chrono::milliseconds deadline);

  // Sent with every request for a completion from now on; empty: none.
  void set_tenant(std::string tenant) { tenant_ = std::move(tenant); }

 private:
  void Prepare(grpc::ClientContext& context, std::chrono::milliseconds deadline) const;

  explicit CompletionsClient(std::shared_ptr<grpc::Channel> channel);

  const std::shared_ptr<grpc::Channel> channel_;
  std::string tenant_;
};

}  // namespace baton
