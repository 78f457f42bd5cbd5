#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "planner/cost_model.h"

namespace baton {

// How many workers serve a rate of requests inside two limits, by measured rates and queueing.h.

struct PoolQuestion {
  double requests_per_second = 1;       // Poisson
  double prompt_tokens = 2048;          // mean, nothing cached
  double prompt_squared_variation = 0;  // variance over squared mean; 0: all prompts equal
  double output_tokens = 128;
  double first_token_limit_seconds = 1;
  double token_limit_seconds = 0.1;  // between two tokens of a stream
  double quantile = 0.9;             // of requests and of tokens that are to be inside
  double most_utilisation = 0.7;     // of any worker
};

// Prefill workers and decode workers.
struct SplitPools {
  int prefill_workers = 0;
  int decode_workers = 0;
  double prefill_seconds = 0;      // of a prompt
  double prefill_load = 0;         // workers kept busy by prompts
  double queue_seconds = 0;        // at the quantile
  double first_token_seconds = 0;  // at the quantile
  double most_batch = 0;           // streams on a decode worker that the limits allow
  double running = 0;              // streams on a decode worker on average
  double step_seconds = 0;         // with these: the time between two tokens
  double decode_load = 0;          // workers kept busy when batches are as large as allowed
};

// Workers that do both.
struct WholePool {
  int workers = 0;
  double first_token_seconds = 0;  // at the quantile
  double token_seconds = 0;        // at the quantile, with the chunks of other prompts in between
  double running = 0;
};

struct PoolSizes {
  SplitPools split;
  std::optional<WholePool> whole;  // absent: no number of workers keeps the limits
};

inline constexpr int kMostPoolWorkers = 100'000;

// INVALID_ARGUMENT naming the field; FAILED_PRECONDITION saying which limit no split can keep.
absl::StatusOr<PoolSizes> SizePools(const CostModel& model,
                                    const TransportRate& transport,
                                    const PoolQuestion& question);

}  // namespace baton
