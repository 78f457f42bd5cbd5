#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/bench_fleet.h"
#include "bench/compare_result.h"

namespace baton {

struct CompareOptions {
  ComparePlan plan;
  // Programs, model, cache, device, transport and pool size; the rest is set for each fleet.
  FleetOptions fleet;
  double kv_bytes_per_token = 0;       // of the model, for the planner
  int context_tokens = 0;              // of the model: no chat runs for longer
  std::optional<MeasuredRates> rates;  // for the predictions; absent: measured first
  // After this nothing is repeated any more, and no further chunk size begins.
  Duration time_limit = std::chrono::hours(4);
  std::function<void(const std::string&)> progress;  // a line for each step
};

// Starts both set-ups, each worker on a core of its own, and runs everything of the plan, the
// set-ups in turn. The calling process, which sends the load, and the routers share the cores that
// are left; with two cores none are, and they run on the workers' cores.
//
// Errors: a server that does not start, a set-up that answers nothing; FAILED_PRECONDITION on a
// machine with fewer than two cores.
absl::StatusOr<CompareResult> RunComparison(const CompareOptions& options);

}  // namespace baton
