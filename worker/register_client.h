#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/worker.pb.h"
#include "proto/tls_credentials.h"
#include "worker/report_hub.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace baton {

// What a Register call tells. Called on gRPC's threads, one at a time: they post.
struct RegisterEvents {
  std::function<void(const v1::RouterNotice&)> on_notice;  // but not of a Resync
  std::function<void(const absl::Status&)> on_end;         // exactly once, last
};

// One Register call. Thread-safe. May be let go of at any time, which does not end the call.
class RegisterCall {
 public:
  explicit RegisterCall(std::shared_ptr<grpc::ClientContext> context);

  // The end follows soon.
  void Cancel();

 private:
  const std::shared_ptr<grpc::ClientContext> context_;  // shared with the call under way
};

// The channel to one address of one router. Connects when first used, and again by itself, at most
// half a second after the router is back. Thread-safe.
class RouterConnection {
 public:
  explicit RouterConnection(std::shared_ptr<grpc::Channel> channel);

  // A call fed by `hub`, which outlives it.
  std::unique_ptr<RegisterCall> Register(ReportHub& hub, RegisterEvents events);

 private:
  const std::shared_ptr<grpc::Channel> channel_;  // shared with the calls under way
};

// Makes connections to routers. Thread-safe.
class RegisterClient {
 public:
  // INVALID_ARGUMENT for TLS files that cannot be read.
  static absl::StatusOr<std::unique_ptr<RegisterClient>> Create(const TlsFiles& tls);
  ~RegisterClient();

  // `address` is numeric; `router` the host:port that it was found for, by which a certificate is
  // checked.
  std::unique_ptr<RouterConnection> Connect(const std::string& address, const std::string& router);

 private:
  struct Credentials;
  explicit RegisterClient(std::unique_ptr<Credentials> credentials);

  const std::unique_ptr<Credentials> credentials_;
};

}  // namespace baton
