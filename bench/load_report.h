#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/load_metrics.h"

namespace baton {

// What a run was asked to do, as its report repeats it.
struct LoadSettings {
  std::string date;  // "20261129-164500"
  std::string server;
  std::string model;
  std::string workload;            // "random", "mixed", "sessions" or the trace's file name
  std::string arrivals;            // "poisson", "fixed", "bursts", "trace"
  double requests_per_second = 0;  // asked for; 0: as in the trace
  double burstiness = 1;           // 1: Poisson; 0: fixed
  SummaryOptions summary;
};

// One JSON object with the names of `vllm bench serve`, besides members of our own: `limits`,
// `good_share`, the percentiles 50, 90 and 95, `send_lag` and `by_kind`. With `details` also the
// lists of every request: input_lens, output_lens, ttfts, itls, errors. Pure; thread-safe.
nlohmann::ordered_json LoadJson(const LoadRun& run, const LoadSettings& settings, bool details);

// For a terminal; ends with a line feed.
std::string LoadTable(const LoadRun& run, const LoadSettings& settings);

}  // namespace baton
