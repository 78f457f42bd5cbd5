#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "baton/v1/worker.pb.h"
#include "kernels/ops.h"
#include "kvtransfer/transport.h"
#include "kvtransfer/transport_choice.h"
#include "worker/worker_flags.h"

namespace baton {

// By what the KV blocks of a worker may travel.
struct TransportSetup {
  TransportPolicy policy;
  TransportFactory factory;
  // For the pool of a prefill worker whose peers may map it; else empty.
  std::function<absl::StatusOr<std::unique_ptr<DeviceMemory>>(std::size_t bytes)> allocate_pool;
};

// From checked flags and from what this machine has; `host_pool` when the pool will be in host
// memory. What --kv-transport names and the machine lacks is FAILED_PRECONDITION: nothing is put in
// its place. What `auto` does without is logged, with the reason.
absl::StatusOr<TransportSetup> SetUpTransport(const WorkerFlags& flags,
                                              v1::Role role,
                                              bool host_pool);

// The kinds by which a worker with this policy hands over blocks: names for a peer to compare.
std::vector<std::string> AllowedTransports(const TransportPolicy& policy);
// OK when a worker with `policy` and a peer that allows `theirs` have a kind in common;
// FAILED_PRECONDITION naming both.
absl::Status CheckTransports(const TransportPolicy& policy, const std::vector<std::string>& theirs);

}  // namespace baton
