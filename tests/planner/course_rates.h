#pragma once

#include "planner/cost_model.h"

namespace baton {

// The course's constants as if they had been measured: one rate of prefill, one of decode at any
// batch and depth, links without a fixed cost.
inline MeasuredRates CourseRates() {
  return {.source = "the course",
          .kv_bytes_per_token = 125'000,
          .layers = 80,
          .max_batch_tokens = 1e6,
          .prefill = {{512, 40'000}, {4096, 40'000}, {32'768, 40'000}},
          .decode = {{1, 0, 0.01}, {8, 4096, 0.01}},
          .transports = {{"rdma", 0, 100e9}, {"tcp", 0, 10e9}}};
}

// Numbers of the size of a small model on a CPU, that follow the fitted curves exactly:
// prefill = 0.004 + 0.0008 L + 4e-8 L^2, step = 0.01 + B (0.002 + 1e-6 D).
inline MeasuredRates SmallRates() {
  MeasuredRates rates{.source = "made up",
                      .kv_bytes_per_token = 23'040,
                      .layers = 30,
                      .kv_pool_tokens = 100'000,
                      .transports = {{"tcp", 0.004, 1e9}, {"slow", 0.050, 5e6}}};
  for (const double tokens : {16, 64, 256, 1024, 4096}) {
    rates.prefill.push_back({tokens, tokens / (0.004 + 0.0008 * tokens + 4e-8 * tokens * tokens)});
  }
  for (const double batch : {1, 4, 16}) {
    for (const double depth : {0, 1000, 4000}) {
      rates.decode.push_back({batch, depth, 0.01 + batch * (0.002 + 1e-6 * depth)});
    }
  }
  return rates;
}

inline CostModel FitModel(MeasuredRates rates) {
  return *CostModel::Fit(std::move(rates));
}

}  // namespace baton
