#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace baton {

// PEM files as given by --tls-cert, --tls-key and --tls-ca; all empty: no TLS.
struct TlsFiles {
  std::string certificate;  // chain of this process, leaf first
  std::string key;
  std::string authority;  // certificates that peers must be signed by

  bool empty() const { return certificate.empty() && key.empty() && authority.empty(); }
};

// INVALID_ARGUMENT unless certificate and key come together; for a server also when there is an
// authority alone.
absl::Status CheckTlsFiles(const TlsFiles& files, bool server);

// What a server listens with: nothing given, plain text; a certificate, TLS; an authority too, and
// every client must show a certificate of it. Errors name the file that cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files);

// What a client connects with: nothing given, plain text; an authority, TLS with servers of it
// (else of the system's authorities); a certificate, this client shows it. Errors name the file
// that cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files);

}  // namespace baton
