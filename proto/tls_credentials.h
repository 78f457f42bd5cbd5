#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tls_hint.h"

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
  TlsUse use() const { return {.speaks_tls = !empty(), .shows_certificate = !certificate.empty()}; }
};

// INVALID_ARGUMENT unless certificate and key come together; for a server also when there is an
// authority alone.
absl::Status CheckTlsFiles(const TlsFiles& files, bool server);

// What a server listens with: nothing given, plain text; a certificate, TLS; an authority too, and
// every client must show a certificate of it.
//
// The files are read again every two seconds. What has changed counts for connections made from
// then on; those that stand go on. Until a new certificate and its key are both there, no
// connection can be made: replace them together, by renaming a folder or a link. A file that cannot
// be read leaves what was there.
//
// Errors: the file that cannot be read now, or INVALID_ARGUMENT for one that is no PEM file or a
// key of another certificate.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files);

// What a client connects with: nothing given, plain text; an authority, TLS with servers of it
// (else of the system's authorities); a certificate, this client shows it. Files and errors as for
// servers.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files);

}  // namespace baton
