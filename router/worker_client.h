#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "baton/v1/worker.pb.h"
#include "proto/tls_credentials.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace baton {

// The channel to one worker. Connects when first used, and again by itself, at most half a second
// after the worker is back. Thread-safe.
class WorkerClient {
 public:
  using Described = std::function<void(absl::StatusOr<v1::WorkerDescription>)>;

  // `address` is host:port. Errors are those of the TLS files.
  static absl::StatusOr<std::unique_ptr<WorkerClient>> Create(const std::string& address,
                                                              const TlsFiles& tls);

  // Asks the worker who it is. `done` comes once, on a gRPC thread, at the latest after `deadline`;
  // a broken connection is UNAVAILABLE at once.
  void Describe(std::chrono::milliseconds deadline, Described done);

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  explicit WorkerClient(std::shared_ptr<grpc::Channel> channel);

  const std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace baton
