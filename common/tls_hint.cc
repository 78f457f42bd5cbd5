#include "common/tls_hint.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

const char* ClosedAtOnce(TlsUse use) {
  if (!use.speaks_tls) {
    return "closed by the other side as soon as it was open, as a server does that wants TLS: see "
           "--tls-cert, --tls-key and --tls-ca";
  }
  return use.shows_certificate
             ? "closed by the other side as soon as it was open, as a server does that does not "
               "accept the certificate of --tls-cert: expired, or of no authority that it knows"
             : "closed by the other side as soon as it was open, as a server does that wants to "
               "see "
               "a certificate: see --tls-cert and --tls-key";
}

// Null: nothing to say.
const char* HintOf(const absl::string_view message, TlsUse use) {
  // OpenSSL's words of gRPC 1.51.
  if (absl::StrContains(message, "wrong version number")) {
    return "the other side speaks plain text, without TLS";
  }
  if (absl::StrContains(message, "Hostname Verification Check failed")) {
    return "the other side's certificate is for another name or address than it was called by";
  }
  if (absl::StrContains(message, "handshake failed")) {
    return "the other side's certificate is not accepted here: expired, or of no authority in "
           "--tls-ca";
  }
  if (absl::StrContains(message, "Socket closed") || absl::StrContains(message, "reset by peer") ||
      absl::StrContains(message, "Broken pipe")) {
    return ClosedAtOnce(use);
  }
  return nullptr;
}

}  // namespace

absl::Status WithTlsHint(const absl::Status& status, TlsUse use) {
  // A connection that stood and was lost is another matter.
  if (!absl::IsUnavailable(status) || !absl::StrContains(status.message(), "failed to connect")) {
    return status;
  }
  const char* const hint = HintOf(status.message(), use);
  return hint == nullptr ? status
                         : absl::UnavailableError(absl::StrCat(status.message(), " (", hint, ")"));
}

}  // namespace baton
