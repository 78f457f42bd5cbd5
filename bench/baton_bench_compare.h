#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/compare_plan.h"
#include "common/flags.h"

namespace baton {

// `baton-bench compare`, as given on the command line.
struct CompareFlags {
  bool quick = false;
  std::string out;
  std::string model;
  std::string cache;
  std::string traces;
  std::string rates;
  std::string kv_transport = "auto";
  std::string device = "cpu";
  std::vector<std::string> gpus;
  std::string kv_pool_size;
  std::string programs;
  std::vector<std::string> only;
  double rate_factor = 1;
  double ttft_limit_ms = PlanOptions().limits.first_token_ms;
  double itl_limit_ms = PlanOptions().limits.inter_token_ms;
  std::optional<std::int64_t> time_limit_s;
};

void AddCompareFlags(Flags& flags, CompareFlags& settings);
// What is wrong about the flags together: INVALID_ARGUMENT naming one. Run after they are parsed.
absl::Status CheckCompare(const CompareFlags& settings);
// Prints the table on standard output and a line for each step on standard error.
absl::Status RunCompare(const CompareFlags& settings);

}  // namespace baton
