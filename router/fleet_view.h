#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/random_id.h"
#include "common/sha256.h"

namespace baton {

// One worker that may get requests, at one moment.
struct WorkerView {
  std::size_t number = 0;  // place in the router's own list of this role
  std::string address;     // gRPC
  InstanceId instance;
  Digest layout{};  // LayoutFingerprint of its identity; KV blocks pass only between equal ones
  std::uint64_t in_flight = 0;   // requests of this router that it has now
  std::uint64_t dispatched = 0;  // requests of this router that it has ever had
};

// The workers that are alive, accepted and not draining.
struct FleetView {
  std::vector<WorkerView> decode;
  std::vector<WorkerView> prefill;
};

}  // namespace baton
