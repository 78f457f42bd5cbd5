#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// Where `host:port` leads, as numeric "address:port", sorted. May block until `stop` is requested.
using ResolveAddresses = std::function<absl::StatusOr<std::vector<std::string>>(
    const std::string& host_port, const std::stop_token& stop)>;

// By the system's resolver (files, DNS). A name with addresses of both families has its IPv4 ones:
// both would be the same routers twice. UNAVAILABLE saying why when nothing is found within 10
// seconds, CANCELLED when stopped.
absl::StatusOr<std::vector<std::string>> ResolveBySystem(const std::string& host_port,
                                                         const std::stop_token& stop);

}  // namespace baton
