#include "common/tls_hint.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// As gRPC 1.51 words it.
std::string Told(const std::string& cause, TlsUse use) {
  const absl::Status status =
      WithTlsHint(absl::UnavailableError(
                      absl::StrCat("failed to connect to all addresses; last error: ", cause)),
                  use);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  return std::string(status.message());
}

// F51.
TEST(TlsHint, SaysWhatToLookAt) {
  const TlsUse mutual{.speaks_tls = true, .shows_certificate = true};
  struct Row {
    const char* cause;
    TlsUse use;
    const char* says;
  };
  const Row rows[] = {
      {"UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed", {}, "wants TLS"},
      {"UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed", mutual, "certificate of --tls-cert"},
      {"UNKNOWN: recvmsg:Connection reset by peer", mutual, "certificate of --tls-cert"},
      {"UNAVAILABLE: Socket closed", {.speaks_tls = true}, "wants to see a certificate"},
      {"Ssl handshake failed: SSL_ERROR_SSL: certificate verify failed", mutual, "--tls-ca"},
      {"Ssl handshake failed: SSL_ERROR_SSL: wrong version number", mutual, "plain text"},
      {"UNAUTHENTICATED: Hostname Verification Check failed.", mutual, "another name or address"},
  };
  for (const Row& row : rows) {
    const std::string told = Told(row.cause, row.use);
    EXPECT_TRUE(absl::StrContains(told, row.cause)) << told;
    EXPECT_TRUE(absl::StrContains(told, row.says)) << told;
  }
}

TEST(TlsHint, HasNothingToSayOfOtherFailures) {
  EXPECT_FALSE(absl::StrContains(Told("Connection refused", {}), "("));
  const absl::Status lost = absl::UnavailableError("Socket closed");
  EXPECT_EQ(WithTlsHint(lost, {}), lost);
  EXPECT_TRUE(WithTlsHint(absl::OkStatus(), {}).ok());
}

}  // namespace
}  // namespace baton
