// Measures the router's decision and what it is worth: docs/router-bench.md.
//
//   router-bench [--json] [--only decisions|traces] ...
//
// Run it in the root folder of the repository, or name the files with --traces and --rates.
#include <cstdio>

#include "bench/router_report.h"
#include "bench/router_rounds.h"
#include "common/flags.h"
#include "router/worker_slot.h"

namespace baton {
namespace {

struct RouterBenchFlags {
  std::string only = "both";
  std::int64_t decode_workers = 500;
  std::int64_t prefill_workers = 500;
  std::int64_t indexed_blocks = 1'000'000;
  std::int64_t slower_blocks = 0;
  std::int64_t prompt_tokens = 4096;
  std::int64_t decisions = 20'000;
  std::int64_t seed = 1;
  std::string rates = "planner/example_rates.json";
  std::string traces = "bench/traces";
  std::int64_t workers = 8;
  std::optional<std::int64_t> blocks_per_worker;
  double busy_speed = 10;
  bool json = false;
};

void AddFlags(Flags& flags, RouterBenchFlags& settings) {
  flags.Choice("only", &settings.only, {"both", "decisions", "traces"}, "what is measured");
  flags.Integer("decode-workers", &settings.decode_workers, 1, kMostWorkers / 2,
                "candidates of a decision that is timed");
  flags.Integer("prefill-workers", &settings.prefill_workers, 0, kMostWorkers / 2,
                "and prefill workers that go with them");
  flags.Integer("indexed-blocks", &settings.indexed_blocks, 256, 16'000'000,
                "blocks that the index knows meanwhile, each on one worker; hot ones come on top");
  flags.Integer("slower-blocks", &settings.slower_blocks, 0, 16'000'000,
                "of these, blocks that host memory has at some worker too, and as many on disks");
  flags.Integer("prompt-tokens", &settings.prompt_tokens, 1024, 131'072,
                "length of the prompts that are timed");
  flags.Integer("decisions", &settings.decisions, 100, 100'000'000,
                "decisions that are timed without updates, and as many with");
  flags.Integer("seed", &settings.seed, 0, 1 << 30, "of all that is drawn");
  flags.Text("rates", &settings.rates, "rates file of the simulated workers");
  flags.Text("traces", &settings.traces, "folder with the traces of Mooncake");
  flags.Integer("workers", &settings.workers, 1, kMostWorkers, "simulated workers");
  flags.OptionalInteger("blocks-per-worker", &settings.blocks_per_worker, 1, 1 << 30,
                        "room of a simulated worker's cache; absent: kv_pool_tokens of the rates");
  flags.Number("busy-speed", &settings.busy_speed, 0.001, 1000,
               "times as fast as in the trace requests come under the load called busy");
  flags.Switch("json", &settings.json, "print one JSON object");
}

RouterBenchOptions ToOptions(const RouterBenchFlags& settings) {
  RouterBenchOptions options{
      .decisions = settings.only != "traces",
      .traces = settings.only != "decisions",
      .decision = {.decode_workers = static_cast<std::uint32_t>(settings.decode_workers),
                   .prefill_workers = static_cast<std::uint32_t>(settings.prefill_workers),
                   .indexed_blocks = static_cast<std::size_t>(settings.indexed_blocks),
                   .slower_blocks = static_cast<std::size_t>(settings.slower_blocks),
                   .prompt_tokens = static_cast<std::size_t>(settings.prompt_tokens),
                   .decisions = static_cast<int>(settings.decisions),
                   .seed = static_cast<std::uint64_t>(settings.seed)},
      .rates_path = settings.rates,
      .traces_folder = settings.traces,
      .workers = static_cast<std::uint32_t>(settings.workers),
      .busy_speed = settings.busy_speed,
      .progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }};
  if (settings.blocks_per_worker.has_value()) {
    options.blocks_per_worker = static_cast<std::size_t>(*settings.blocks_per_worker);
  }
  return options;
}

int Main(int argc, const char* const* argv) {
  RouterBenchFlags settings;
  Flags flags("router-bench",
              "Times the router's decision among many workers, and replays request traces against "
              "simulated workers to see what its default policy is worth beside round-robin.");
  AddFlags(flags, settings);
  if (const std::optional<int> code = flags.Parse(argc, argv); code.has_value()) {
    return *code;
  }
  const absl::StatusOr<RouterBenchReport> report = RunRouterBench(ToOptions(settings));
  if (!report.ok()) {
    std::fprintf(stderr, "router-bench: %s\n", std::string(report.status().message()).c_str());
    return 1;
  }
  std::fputs((settings.json ? ToJson(*report) : ToTable(*report)).c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  return baton::Main(argc, argv);
}
