#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/flags.h"
#include "proto/tls_credentials.h"

namespace baton {

// `baton-bench run`: load on a server that is there already. As given on the command line.
struct RunFlags {
  std::string server = "127.0.0.1:8000";
  TlsFiles tls;
  std::string workload = "random";
  std::string trace;
  std::int64_t length_divisor = 1;
  std::int64_t first = 0;
  std::int64_t requests = 100;
  std::string arrivals = "poisson";
  double rate = 1;
  std::int64_t burst = 8;
  std::int64_t prompt_tokens = 512;
  std::int64_t output_tokens = 64;
  std::int64_t turns = 4;
  std::int64_t system_tokens = 256;
  std::string path = "auto";
  double warm_up_s = 0;
  double ttft_limit_ms = 1000;
  double itl_limit_ms = 60;
  std::int64_t timeout_s = 120;
  std::int64_t seed = 1;
  std::string json;
  std::string html;
  bool details = false;
};

void AddRunFlags(Flags& flags, RunFlags& settings);
// What is wrong about the flags together: INVALID_ARGUMENT naming one. Run after they are parsed.
absl::Status CheckRun(const RunFlags& settings);
// Prints the table on standard output and progress on standard error.
absl::Status RunLoad(const RunFlags& settings);

}  // namespace baton
