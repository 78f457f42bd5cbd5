#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/router_decision.h"
#include "bench/simulated_fleet.h"

namespace baton {

struct RouterBenchOptions {
  bool decisions = true;
  bool traces = true;
  DecisionSetup decision;
  std::string rates_path;
  std::string traces_folder;
  std::uint32_t workers = 8;
  // Room of a worker's cache; absent: what kv_pool_tokens of the rates says.
  std::optional<std::size_t> blocks_per_worker;
  double busy_speed = 10;  // times that of the trace
  std::function<void(const std::string&)> progress;
};

// One trace replayed in one way, by two policies.
struct TraceFigure {
  std::string name;  // of the trace
  // "unlimited": one worker without bound, one request at a time. Else bounded caches: "idle", one
  // request at a time; "trace", as they come in the trace; "busy", faster.
  std::string load;
  ReplaySetup setup;
  ReplayResult prefix;
  ReplayResult round_robin;
};

struct RouterBenchReport {
  std::string rates_source;
  std::optional<DecisionFigures> decision;
  std::vector<TraceFigure> traces;
};

// Times decisions, and replays the two traces of Mooncake with lengths divided by 32, so that one
// hash id stands for one block.
absl::StatusOr<RouterBenchReport> RunRouterBench(const RouterBenchOptions& options);

}  // namespace baton
