#pragma once

#include "absl/status/status.h"

namespace baton {

// How this side of a connection was set up.
struct TlsUse {
  bool speaks_tls = false;
  bool shows_certificate = false;
};

// `status` of a connection that could not be made, with what most likely has to be set otherwise:
// gRPC says "Socket closed" to a client whose certificate the server does not accept, and to one
// that speaks plain text to a server with TLS. Any other status as it is.
absl::Status WithTlsHint(const absl::Status& status, TlsUse use);

}  // namespace baton
