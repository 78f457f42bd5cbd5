#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/tls_credentials.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace baton {

// The channel to one worker, at `address` as host:port. Connects when first used, and again by
// itself, at most half a second after the worker is back. Thread-safe. Errors are those of the TLS
// files.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeWorkerChannel(const std::string& address,
                                                                 const TlsFiles& tls);

}  // namespace baton
