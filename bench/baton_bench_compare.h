#pragma once

#include <string>

#include "absl/status/status.h"
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
  std::string kv_pool_size = "512MiB";
  std::string programs;
  std::vector<std::string> only;
  std::int64_t time_limit_s = 4 * 3600;
};

void AddCompareFlags(Flags& flags, CompareFlags& settings);
// Prints the table on standard output and a line for each step on standard error.
absl::Status RunCompare(const CompareFlags& settings);

}  // namespace baton
