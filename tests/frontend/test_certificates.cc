#include "tests/frontend/test_certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>

#include "common/check.h"

namespace baton {
namespace {

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using Key = std::unique_ptr<EVP_PKEY, Free>;
using Certificate = std::unique_ptr<X509, Free>;
using File = std::unique_ptr<std::FILE, Free>;

void AddExtension(X509& certificate, X509& issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, &issuer, &certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  BATON_CHECK(extension != nullptr);
  X509_add_ext(&certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

Certificate NewCertificate(const char* name, long serial, EVP_PKEY& key, bool is_over = false) {
  constexpr long kSeconds = 3600;
  Certificate certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kSeconds);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), is_over ? -1 : kSeconds);
  X509_set_pubkey(certificate.get(), &key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  return certificate;
}

void Write(const std::string& path, const X509& certificate) {
  const File file(std::fopen(path.c_str(), "w"));
  BATON_CHECK(file != nullptr && PEM_write_X509(file.get(), &certificate) == 1);
}

}  // namespace

struct TestAuthority::Parts {
  Key key;
  Certificate certificate;
};

TestAuthority::TestAuthority(const std::string& folder)
    : folder_(folder), parts_(std::make_unique<Parts>()) {
  parts_->key.reset(EVP_EC_gen("P-256"));
  parts_->certificate = NewCertificate("baton test authority", last_serial_, *parts_->key);
  X509& ca = *parts_->certificate;
  X509_set_issuer_name(&ca, X509_get_subject_name(&ca));
  AddExtension(ca, ca, NID_basic_constraints, "critical,CA:TRUE");
  X509_sign(&ca, parts_->key.get(), EVP_sha256());
  Write(folder_ + "/ca.pem", ca);
}

TestAuthority::~TestAuthority() = default;

TlsFiles TestAuthority::Issue(const std::string& name,
                              const std::string& names,
                              Validity validity) {
  const TlsFiles files{.certificate = folder_ + "/" + name + "cert.pem",
                       .key = folder_ + "/" + name + "key.pem",
                       .authority = folder_ + "/ca.pem"};
  X509& ca = *parts_->certificate;
  const Key key(EVP_EC_gen("P-256"));
  const Certificate leaf =
      NewCertificate("localhost", ++last_serial_, *key, validity == Validity::kOver);
  X509_set_issuer_name(leaf.get(), X509_get_subject_name(&ca));
  AddExtension(*leaf, ca, NID_subject_alt_name, names.c_str());
  X509_sign(leaf.get(), parts_->key.get(), EVP_sha256());
  Write(files.certificate, *leaf);
  const File file(std::fopen(files.key.c_str(), "w"));
  BATON_CHECK(file != nullptr && PEM_write_PrivateKey(file.get(), key.get(), nullptr, nullptr, 0,
                                                      nullptr, nullptr) == 1);
  return files;
}

void WriteTestCertificates(const std::string& folder) {
  TestAuthority(folder).Issue("", "DNS:localhost,IP:127.0.0.1");
}

}  // namespace baton
