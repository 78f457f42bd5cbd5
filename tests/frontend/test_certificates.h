#pragma once

#include <memory>
#include <string>

#include "proto/tls_credentials.h"

namespace baton {

// A throw-away authority in `folder`, which exists: ca.pem there, valid for an hour, and PEM files
// of the certificates that it issues.
class TestAuthority {
 public:
  explicit TestAuthority(const std::string& folder);
  ~TestAuthority();

  enum class Validity { kNow, kOver };
  // A certificate for `names`, as OpenSSL writes alternative names ("DNS:localhost,IP:127.0.0.1"),
  // in `name`cert.pem and `name`key.pem.
  TlsFiles Issue(const std::string& name,
                 const std::string& names,
                 Validity validity = Validity::kNow);

 private:
  struct Parts;
  const std::string folder_;
  const std::unique_ptr<Parts> parts_;
  long last_serial_ = 1;  // the authority's own
};

// An authority and a certificate of it for 127.0.0.1 and localhost, as PEM files in `folder`:
// ca.pem, cert.pem and key.pem.
void WriteTestCertificates(const std::string& folder);

}  // namespace baton
