#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "planner/rates.h"
#include "proto/tls_credentials.h"

namespace baton {

// Asks the router at `address` (host:port) what its fleet was seen to do. Of the program, not of
// the library: the cost model itself talks to nobody.
//
// UNAVAILABLE when it does not answer within five seconds; FAILED_PRECONDITION when it is no
// router, or has not seen enough yet: then the message says what is missing.
absl::StatusOr<MeasuredRates> AskRouterForRates(const std::string& address, const TlsFiles& tls);

}  // namespace baton
