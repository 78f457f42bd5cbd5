#include "bench/baton_bench_compare.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/compare_page.h"
#include "bench/compare_report.h"
#include "bench/compare_rounds.h"
#include "bench/report_file.h"
#include "bench/work_model.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "model/checkpoint.h"
#include "model/model_path.h"
#include "planner/rates_file.h"

namespace baton {
namespace {

constexpr const char* kCpuPoolSize = "512MiB";
constexpr std::int64_t kQuickLimitSeconds = 310;
constexpr std::int64_t kFullLimitSeconds = 4 * 3600;

// Where this program lies: the servers lie beside it.
std::string OwnFolder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

absl::StatusOr<ComparePlan> MakePlan(const CompareFlags& settings) {
  const PlanOptions options{.traces = settings.traces,
                            .rate_factor = settings.rate_factor,
                            .limits = {.first_token_ms = settings.ttft_limit_ms,
                                       .inter_token_ms = settings.itl_limit_ms}};
  ASSIGN_OR_RETURN(ComparePlan plan, settings.quick ? QuickPlan(options) : FullPlan(options));
  for (const std::string& name : settings.only) {
    if (std::none_of(plan.workloads.begin(), plan.workloads.end(),
                     [&](const ComparedWorkload& workload) { return workload.name == name; })) {
      return absl::InvalidArgumentError(
          absl::StrCat("--only: there is no workload \"", name, "\""));
    }
  }
  std::erase_if(plan.workloads, [&](const ComparedWorkload& workload) {
    return !settings.only.empty() && std::find(settings.only.begin(), settings.only.end(),
                                               workload.name) == settings.only.end();
  });
  return plan;
}

absl::StatusOr<CompareOptions> MakeOptions(const CompareFlags& settings) {
  CompareOptions options{
      .fleet = {.programs = settings.programs.empty() ? OwnFolder() : settings.programs,
                .cache = settings.cache,
                .device = settings.device,
                .gpus = settings.gpus,
                .kv_transport = settings.kv_transport,
                .kv_pool_size =
                    settings.kv_pool_size.empty() ? kCpuPoolSize : settings.kv_pool_size},
      .time_limit = std::chrono::seconds(
          settings.time_limit_s.value_or(settings.quick ? kQuickLimitSeconds : kFullLimitSeconds)),
      .progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }};
  ASSIGN_OR_RETURN(options.plan, MakePlan(settings));
  ASSIGN_OR_RETURN(options.fleet.model, ResolveModelPath(settings.model, settings.cache));
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                   Checkpoint::Open(options.fleet.model, settings.cache));
  options.kv_bytes_per_token = KvBytesPerToken(checkpoint->config());
  options.context_tokens = checkpoint->config().context_tokens;
  if (!settings.rates.empty()) {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(settings.rates));
    ASSIGN_OR_RETURN(options.rates, ParseRates(settings.rates, file.bytes()));
  }
  return options;
}

}  // namespace

void AddCompareFlags(Flags& flags, CompareFlags& settings) {
  flags.Switch("quick", &settings.quick,
               "minutes instead of more than an hour, and numbers that repeat only roughly");
  flags.Text("out", &settings.out, "folder for report.html and result.json");
  flags.Text(
      "model", &settings.model,
      "GGUF file, Hugging Face directory, or a name in <cache>/models; empty: the example model");
  flags.Text("cache", &settings.cache, "folder that holds models/");
  flags.Text("traces", &settings.traces, "folder of the public request traces");
  flags.Text("rates", &settings.rates,
             "rates for the planner's predictions (planner/README.md); empty: measured");
  flags.Choice("kv-transport", &settings.kv_transport, {"auto", "rdma", "mapped", "tcp", "grpc"},
               "of the workers");
  flags.Choice("device", &settings.device, {"cpu", "cuda"}, "of the workers");
  flags.TextList("gpu", &settings.gpus,
                 "what CUDA_VISIBLE_DEVICES names for a worker; twice: prefill and decode, or both "
                 "workers that do both");
  flags.Text(
      "kv-pool-size", &settings.kv_pool_size,
      "of each worker; empty: 512MiB. Up to six workers are there at a time, three on a GPU");
  flags.Text(
      "programs", &settings.programs,
      "folder of baton-decode, baton-prefill and baton-router; empty: where this program is");
  flags.TextList("only", &settings.only, "this workload alone; absent: all");
  flags.Number("rate-factor", &settings.rate_factor, 0.01, 1000,
               "what all request rates are multiplied by: they are made for the example model on "
               "one CPU core");
  flags.Number("ttft-limit", &settings.ttft_limit_ms, 0, 1e9,
               "milliseconds to the first token that a good request keeps");
  flags.Number("itl-limit", &settings.itl_limit_ms, 0, 1e9,
               "milliseconds that 95% of a good request's gaps between tokens keep");
  flags.OptionalInteger(
      "time-limit", &settings.time_limit_s, 1, 86'400,
      "seconds after which nothing is repeated and no further chunk size is tried; "
      "absent: 310 with --quick, else four hours");
}

absl::Status CheckCompare(const CompareFlags& settings) {
  if (settings.out.empty()) {
    return absl::InvalidArgumentError("--out: a folder is needed");
  }
  if (settings.device == "cuda" && (settings.gpus.size() != 2 || settings.kv_pool_size.empty())) {
    return absl::InvalidArgumentError("--device cuda needs --gpu twice and --kv-pool-size");
  }
  return absl::OkStatus();
}

absl::Status RunCompare(const CompareFlags& settings) {
  std::error_code error;
  std::filesystem::create_directories(settings.out, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("--out: ", settings.out, ": ", error.message()));
  }
  ASSIGN_OR_RETURN(const CompareOptions options, MakeOptions(settings));
  ASSIGN_OR_RETURN(CompareResult result, RunComparison(options));
  result.quick = settings.quick;
  RETURN_IF_ERROR(
      WriteReportFile(settings.out + "/result.json", CompareJson(result).dump(2) + "\n"));
  RETURN_IF_ERROR(WriteReportFile(settings.out + "/report.html", ComparePage(result)));
  std::fputs(CompareTable(result).c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace baton
