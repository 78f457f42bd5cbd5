#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/random_id.h"
#include "common/tls_hint.h"
#include "planner/cost_model.h"
#include "router/tier_loads.h"
#include "router/worker_counts.h"
#include "router/worker_slot.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace baton {

// A worker that may get requests. Immutable but for its counts; thread-safe.
struct UsableWorker {
  WorkerSlot slot;
  std::string address;         // gRPC
  std::uint64_t identity = 0;  // made of the address: the same at every router
  InstanceId instance;
  std::string zone;
  std::uint32_t layout = 0;  // KV blocks pass only between workers of equal ones
  std::uint32_t max_sequences = 0;
  std::shared_ptr<grpc::Channel> channel;
  TlsUse tls;                              // of the channel
  std::shared_ptr<WorkerCounts> counts;    // never null; outlives the view in calls under way
  std::shared_ptr<const CostModel> costs;  // never null; shared by workers that are alike
  std::optional<TransportRate> transport;  // of handoffs, where it was measured
  TierLoads loads;
};

// The workers that are alive, accepted and not draining, as of one moment. Shared by requests that
// are being routed while the fleet already has a newer one. Immutable.
struct FleetView {
  std::vector<std::shared_ptr<const UsableWorker>> decode;
  std::vector<std::shared_ptr<const UsableWorker>> prefill;
  std::vector<std::shared_ptr<const UsableWorker>> by_slot;  // all of them; null: not usable

  std::shared_ptr<const UsableWorker> At(WorkerSlot slot) const {
    return slot.value() < by_slot.size() ? by_slot[slot.value()] : nullptr;
  }
};

}  // namespace baton
