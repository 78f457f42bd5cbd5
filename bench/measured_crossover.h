#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "bench/bench_load.h"
#include "bench/compare_result.h"

namespace baton {

struct CrossoverOptions {
  const ComparePlan& plan;  // borrowed
  double kv_bytes_per_token = 0;
  int max_batch_tokens = 256;
  std::optional<MeasuredRates> rates;  // absent: measured on the same fleet first
  std::function<void(const std::string&)> progress;
};

// Times requests of each prompt length by either path on one fleet with a prefill and a decode
// worker, beside streams that the decode worker runs meanwhile, and what the planner says about the
// same from rates of these workers. A cell whose every try was spoiled is left out.
absl::StatusOr<Crossover> MeasureCrossover(const CrossoverOptions& options, BenchLoad& load);

}  // namespace baton
