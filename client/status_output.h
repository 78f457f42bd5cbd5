#pragma once

#include <string>

#include "baton/v1/worker.pb.h"

namespace baton {

// One screen: the server; its fleet with pools and hit rates; what KV blocks travel by; where
// disaggregation begins to pay; the prefix index; the admission queue; the requests so far. Of a
// large fleet the first workers, those with a problem before the others. What a server has nothing
// to say about is left out.
std::string DescribeStatus(const v1::StatusResponse& status);

}  // namespace baton
