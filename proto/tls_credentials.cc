#include "proto/tls_credentials.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"

namespace baton {
namespace {

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  if (path.empty()) {
    return std::string();
  }
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  std::string text(file.bytes());
  if (text.find("-----BEGIN ") == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a PEM file"));
  }
  return text;
}

}  // namespace

absl::Status CheckTlsFiles(const TlsFiles& files, bool server) {
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key are needed together");
  }
  if (server && files.certificate.empty() && !files.authority.empty()) {
    return absl::InvalidArgumentError("--tls-ca of a server needs --tls-cert and --tls-key too");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files) {
  RETURN_IF_ERROR(CheckTlsFiles(files, /*server=*/true));
  if (files.empty()) {
    return grpc::InsecureServerCredentials();
  }
  grpc::SslServerCredentialsOptions options(
      files.authority.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                              : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem(files.authority));
  grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
  ASSIGN_OR_RETURN(pair.private_key, ReadPem(files.key));
  ASSIGN_OR_RETURN(pair.cert_chain, ReadPem(files.certificate));
  options.pem_key_cert_pairs.push_back(std::move(pair));
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files) {
  RETURN_IF_ERROR(CheckTlsFiles(files, /*server=*/false));
  if (files.empty()) {
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions options;
  ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem(files.authority));
  ASSIGN_OR_RETURN(options.pem_private_key, ReadPem(files.key));
  ASSIGN_OR_RETURN(options.pem_cert_chain, ReadPem(files.certificate));
  return grpc::SslCredentials(options);
}

}  // namespace baton
