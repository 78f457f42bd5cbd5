#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/load_metrics.h"
#include "bench/workload.h"

namespace baton {

// One kind of traffic that set-ups are compared on.
struct ComparedWorkload {
  std::string name;         // "mixed"
  std::string description;  // for a reader of the report
  std::string stream_kind;  // whose gaps between tokens count; empty: all
  std::string event_kind;   // what makes streams stand still, marked on the time line; empty: none
  ServiceLimits limits;
  std::vector<double> rates;  // requests a second, rising
  double reference_rate = 0;  // one of `rates`: where latencies are compared
  Duration duration{};        // of one run, so long as requests come
  int reference_repeats = 1;  // runs of each set-up at the reference rate
  int other_repeats = 1;      // at the other rates
  // The load at a rate; another seed gives other prompts at other times.
  std::function<Workload(double rate, Duration duration, std::uint64_t seed)> make;
};

// What a comparison does, and how often.
struct ComparePlan {
  std::vector<ComparedWorkload> workloads;
  std::vector<int> chunks;    // --max-batch-tokens of the colocated side beside its default
  int reference_repeats = 2;  // runs of each set-up at the reference rate
  int other_repeats = 1;      // at the other rates
  int chunk_repeats = 1;      // with other chunks
  Duration chat_duration{};   // of the running chat, undisturbed
  int chat_repeats = 1;
  int crossover_repeats = 1;
  std::vector<int> crossover_prompts;  // tokens, rising
  std::vector<int> crossover_outputs;  // tokens, rising
  std::vector<int> crossover_running;  // streams on the decode worker meanwhile
};

struct PlanOptions {
  std::string traces;  // folder of the public traces
  // Every rate is multiplied by it: the plans' own are made for the example model on one CPU core.
  double rate_factor = 1;
  ServiceLimits limits{.first_token_ms = 2000, .inter_token_ms = 60};
};

// Errors are those of reading the traces; INVALID_ARGUMENT when one has fewer requests than the
// highest rate asks for.
absl::StatusOr<ComparePlan> QuickPlan(const PlanOptions& options);  // minutes
absl::StatusOr<ComparePlan> FullPlan(const PlanOptions& options);   // 70 minutes

}  // namespace baton
