#include "proto/tls_credentials.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <map>
#include <tuple>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "proto/grpc_runtime.h"

namespace baton {
namespace {

using CertificateProvider = grpc::experimental::CertificateProviderInterface;

constexpr unsigned kReadAgainSeconds = 2;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};

// A file in memory, as OpenSSL reads it.
absl::StatusOr<std::unique_ptr<BIO, Free>> ReadPem(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().find("-----BEGIN ") == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a PEM file"));
  }
  std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
  const auto size = static_cast<int>(file.bytes().size());
  if (bio == nullptr || BIO_write(bio.get(), file.bytes().data(), size) != size) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory to read it"));
  }
  return bio;
}

absl::StatusOr<std::unique_ptr<X509, Free>> ReadCertificate(const std::string& path) {
  ASSIGN_OR_RETURN(const auto pem, ReadPem(path));
  std::unique_ptr<X509, Free> certificate(PEM_read_bio_X509(pem.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": holds no certificate"));
  }
  return certificate;
}

// As they are now; gRPC, which reads them again and again, says little about what is wrong.
absl::Status CheckContent(const TlsFiles& files) {
  if (!files.authority.empty()) {
    RETURN_IF_ERROR(ReadCertificate(files.authority).status());
  }
  if (files.certificate.empty()) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const auto certificate, ReadCertificate(files.certificate));
  ASSIGN_OR_RETURN(const auto pem, ReadPem(files.key));
  // Without this OpenSSL would ask at the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  const std::unique_ptr<EVP_PKEY, Free> key(
      PEM_read_bio_PrivateKey(pem.get(), nullptr, no_passphrase, nullptr));
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.key, ": is not a private key without a passphrase"));
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.key, ": is not the key of ", files.certificate));
  }
  return absl::OkStatus();
}

// Each provider has a thread that looks at its files: one for all channels that have the same.
std::shared_ptr<CertificateProvider> WatchFiles(const TlsFiles& files) {
  using Files = std::tuple<std::string, std::string, std::string>;
  KeepGrpcRunning();
  ABSL_CONST_INIT static absl::Mutex mutex(absl::kConstInit);
  static std::map<Files, std::weak_ptr<CertificateProvider>> known;
  absl::MutexLock lock(&mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<CertificateProvider>& entry =
      known[Files(files.certificate, files.key, files.authority)];
  std::shared_ptr<CertificateProvider> provider = entry.lock();
  if (provider == nullptr) {
    provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
        files.key, files.certificate, files.authority, kReadAgainSeconds);
    entry = provider;
  }
  return provider;
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
  RETURN_IF_ERROR(CheckContent(files));
  grpc::experimental::TlsServerCredentialsOptions options(WatchFiles(files));
  options.watch_identity_key_cert_pairs();
  if (!files.authority.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files) {
  RETURN_IF_ERROR(CheckTlsFiles(files, /*server=*/false));
  if (files.empty()) {
    return grpc::InsecureChannelCredentials();
  }
  RETURN_IF_ERROR(CheckContent(files));
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(WatchFiles(files));
  if (!files.certificate.empty()) {
    options.watch_identity_key_cert_pairs();
  }
  if (!files.authority.empty()) {
    options.watch_root_certs();
  }
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace baton
