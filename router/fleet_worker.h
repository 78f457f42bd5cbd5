#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "router/fleet_view.h"
#include "router/watch_reactor.h"
#include "router/worker_costs.h"
#include "router/worker_kv.h"

namespace baton {

// What the fleet knows of one worker. All but the constants, and what is thread-safe itself, is
// guarded by the fleet's mutex.
struct FleetWorker {
  FleetWorker(WorkerSlot s, v1::Role r, std::string a, bool l, TieredIndex& index)
      : slot(s), role(r), address(std::move(a)), listed(l), kv(index, s) {}

  const WorkerSlot slot;
  const v1::Role role;
  const std::string address;  // gRPC
  const bool listed;          // on the static list
  std::shared_ptr<grpc::Channel> channel;
  WorkerKv kv;
  std::uint64_t arrival = 0;  // place in the status
  std::shared_ptr<WorkerCounts> counts = std::make_shared<WorkerCounts>();

  std::shared_ptr<WatchReactor> watch;  // of a listed worker, while it lasts; shared with gRPC
  TimePoint next_watch;
  TimePoint watch_begun;

  std::set<FeedId> feeds;  // streams whose first description was about this process
  bool asked = false;      // it has reported, or a watch has ended or been silent for too long
  bool alive = false;
  TimePoint last_report;
  std::string problem = "has not answered yet";
  v1::WorkerDescription description;  // the last one received
  std::string instance;               // of the process that has the place; empty: of none so far
  std::uint32_t layout = 0;
  WorkerCosts costs{.model = NominalCosts()};

  bool usable() const { return alive && problem.empty(); }
};

// A stream of reports. Guarded by the fleet's mutex.
struct FleetFeed {
  std::optional<WorkerSlot> listed;  // the worker that is watched; absent: it has registered
  std::function<void(const v1::RouterNotice&)> notify;
  FleetWorker* worker = nullptr;    // from the first description on
  std::string instance;             // of the process that reports
  std::optional<std::string> told;  // the problem that the worker was last told; empty: none
};

}  // namespace baton
