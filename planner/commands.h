#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "planner/cost_model.h"
#include "planner/report.h"

namespace baton {

// The commands of baton-plan, one function each: options to a report. With a model, in measured
// mode; without (nullptr), by the course's constants. Pure; thread-safe. Errors: INVALID_ARGUMENT
// naming the field, FAILED_PRECONDITION where no plan can keep the limits.

// Rates from a file, and the transport to ask about. Borrows the model.
struct Measured {
  const CostModel* model = nullptr;
  std::string transport;  // empty: the first of the file
};

struct HogwildOptions {
  std::int64_t workers = 2;
  double coordination = 0.8;
  std::int64_t steps = 200;
  std::int64_t seed = 42;
  std::string view = "immediate";  // or "stale"
  double serial_steps = 10'000;
  double parallel = 0.7;
  double overhead_steps = 200;
  double depth_tokens = 2048;  // measured
};
absl::StatusOr<Report> PlanHogwild(const HogwildOptions& options, const Measured& measured);

struct DisaggOptions {
  double prompt_tokens = 4096;
  double output_tokens = 500;
  double depth_tokens = 1024;  // measured: of running streams
};
absl::StatusOr<Report> PlanDisagg(const DisaggOptions& options, const Measured& measured);

struct RegionsOptions {
  std::int64_t slots = 12;
  std::string eviction = "first-in";  // "least-recent", "random"
  bool affinity = false;
  bool residency = false;
  std::int64_t eviction_seed = 0;
  double prompt_tokens = 2048;  // measured
  double uncached_tokens = 64;  // measured: what even a hit has to compute
};
absl::StatusOr<Report> PlanRegions(const RegionsOptions& options, const Measured& measured);

struct OffloadOptions {
  std::optional<std::int64_t> slots;  // absent: as in the course, 4 for native only
  std::string eviction = "first-in";
  double load_ms_per_block = 3.0;
  std::int64_t eviction_seed = 0;
};
absl::StatusOr<Report> PlanOffload(const OffloadOptions& options, const Measured& measured);

struct SizeOptions {
  double requests_per_second = 10;
  double prompt_tokens = 8192;
  double output_tokens = 300;
  double most_utilisation = 0.7;
  double gpu_bytes = 141e9;  // paper, as the next two
  double gpu_bytes_per_second = 4.8e12;
  double weight_bytes = 70e9;
  double first_token_limit_seconds = 1;  // measured, as the rest
  double token_limit_seconds = 0.1;
  double quantile = 0.9;
  double prompt_squared_variation = 0;
};
absl::StatusOr<Report> PlanSize(const SizeOptions& options, const Measured& measured);

struct CrossoverOptions {
  double prompt_tokens = 512;  // the length that is asked about
  double output_tokens = 200;
  double depth_tokens = 1024;       // measured: of running streams
  double prefill_queue_tokens = 0;  // measured: what the prefill worker computes first
  double round_trip_ms = 75;        // measured: to another region
  double uncached_tokens = 64;      // measured: what even a hit there has to compute
};
absl::StatusOr<Report> PlanCrossover(const CrossoverOptions& options, const Measured& measured);

}  // namespace baton
