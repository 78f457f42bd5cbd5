#include "bench/router_rounds.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/block_hash.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "planner/rates_file.h"

namespace baton {
namespace {

constexpr int kLengthDivisor = kMooncakeHashedTokens / kBlockTokens;

absl::StatusOr<CostModel> ReadCosts(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(MeasuredRates rates, ParseRates(path, file.bytes()));
  return CostModel::Fit(std::move(rates));
}

absl::StatusOr<std::size_t> BlocksPerWorker(const RouterBenchOptions& options,
                                            const MeasuredRates& rates) {
  if (options.blocks_per_worker.has_value()) {
    return *options.blocks_per_worker;
  }
  if (!rates.kv_pool_tokens.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.rates_path, ": no kv_pool_tokens, and no --blocks-per-worker given"));
  }
  return static_cast<std::size_t>(*rates.kv_pool_tokens) / kBlockTokens;
}

absl::Status ReplayTrace(const std::string& name,
                         const RouterBenchOptions& options,
                         const CostModel& costs,
                         RouterBenchReport& report) {
  ASSIGN_OR_RETURN(
      const Trace trace,
      ReadTraceFile(absl::StrCat(options.traces_folder, "/", name, ".jsonl"), kLengthDivisor));
  ASSIGN_OR_RETURN(const std::size_t blocks, BlocksPerWorker(options, costs.rates()));
  const std::vector<ReplayRequest> requests = ReplayRequests(trace);
  ReplaySetup bounded{
      .workers = options.workers, .blocks_per_worker = blocks, .seed = options.decision.seed};
  std::vector<std::pair<std::string, ReplaySetup>> loads = {
      {"unlimited", {.workers = 1, .speed = std::nullopt, .seed = bounded.seed}}};
  for (const auto& [load, speed] :
       {std::pair<std::string, std::optional<double>>{"idle", std::nullopt},
        {"trace", 1.0},
        {"busy", options.busy_speed}}) {
    bounded.speed = speed;
    loads.emplace_back(load, bounded);
  }
  for (auto& [load, setup] : loads) {
    options.progress(absl::StrCat("replaying ", name, ", ", load));
    TraceFigure figure{.name = name, .load = load, .setup = setup};
    setup.policy = RoutePolicyKind::kPrefix;
    figure.prefix = Replay(requests, costs, setup);
    setup.policy = RoutePolicyKind::kRoundRobin;
    figure.round_robin = Replay(requests, costs, setup);
    report.traces.push_back(std::move(figure));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RouterBenchReport> RunRouterBench(const RouterBenchOptions& options) {
  ASSIGN_OR_RETURN(const CostModel costs, ReadCosts(options.rates_path));
  RouterBenchReport report{.rates_source = costs.rates().source};
  if (options.decisions) {
    options.progress(absl::StrCat("timing decisions: ", options.decision.decode_workers,
                                  " decode and ", options.decision.prefill_workers,
                                  " prefill workers, ", options.decision.indexed_blocks,
                                  " blocks"));
    report.decision = MeasureDecisions(options.decision, costs);
  }
  if (options.traces) {
    for (const char* name : {"mooncake_conversation", "mooncake_synthetic"}) {
      RETURN_IF_ERROR(ReplayTrace(name, options, costs, report));
    }
  }
  return report;
}

}  // namespace baton
