// Load on a Baton server, and splitting prefill from decode compared with doing both in one place.
// Method, definitions and members of the JSON objects: docs/benchmark.md.
//
//   baton-bench run --server HOST:PORT [--workload mixed] [--rate 2] [--json FILE] [--html FILE]
//   baton-bench compare --quick --out FOLDER
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "bench/baton_bench_compare.h"
#include "bench/baton_bench_run.h"
#include "common/flags.h"
#include "common/log.h"
#include "frontend/server_flags.h"

int main(int argc, char** argv) {
  baton::RunFlags run;
  baton::CompareFlags compare;
  compare.cache = baton::DefaultCacheFolder(std::getenv("HOME"));
  compare.traces = BENCH_TRACES;
  baton::Flags flags(
      "baton-bench",
      "Puts load on Baton and says what came of it: requests are sent at their times "
      "whether or not earlier ones were answered, and count from when they were due.");
  baton::AddRunFlags(flags.Subcommand("run", "Load on a server that is there already."), run);
  baton::AddCompareFlags(
      flags.Subcommand(
          "compare",
          "Starts both set-ups on the same two cores, compares them under several kinds "
          "of traffic, and writes a report."),
      compare);
  if (const std::optional<int> code = flags.Parse(argc, argv)) {
    return *code;
  }
  baton::SetUpLog({.component = "baton-bench", .level = baton::LogLevel::kWarn});
  const std::string command = flags.chosen_subcommand();
  const absl::Status usage = command.empty()
                                 ? absl::InvalidArgumentError("run or compare is needed")
                             : command == "run" ? baton::CheckRun(run)
                                                : baton::CheckCompare(compare);
  if (!usage.ok()) {
    std::fprintf(stderr, "baton-bench: %s\nbaton-bench: see --help\n",
                 std::string(usage.message()).c_str());
    return 2;
  }
  const absl::Status status = command == "run" ? baton::RunLoad(run) : baton::RunCompare(compare);
  if (!status.ok()) {
    std::fprintf(stderr, "baton-bench: %s: %s\n", command.c_str(),
                 std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
