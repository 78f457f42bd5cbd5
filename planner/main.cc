// baton-plan: what a deployment needs, before it is rented.

#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/flags.h"
#include "common/status_macros.h"
#include "planner/commands.h"
#include "planner/rates_file.h"
#include "planner/router_client.h"

namespace {

struct PlanFlags {
  std::string rates;
  std::string router;   // host:port; empty: none is asked
  baton::TlsFiles tls;  // of the connection to it
  std::string transport;
  std::string svg;
  bool json = false;
  baton::HogwildOptions hogwild;
  baton::DisaggOptions disagg;
  baton::RegionsOptions regions;
  baton::OffloadOptions offload;
  baton::SizeOptions size;
  baton::CrossoverOptions crossover;
};

constexpr double kMostTokens = 1e9;
constexpr char kEvictionHelp[] = "which prefix leaves a full cache";

void AddCommonFlags(baton::Flags& flags, PlanFlags& settings) {
  flags.Text("rates", &settings.rates,
             "JSON file with measured rates (planner/README.md), or what `baton status --json` has "
             "printed; empty: the course's constants");
  flags.Text("from-router", &settings.router,
             "host:port of a router to ask for its rates, instead of --rates");
  flags.Text("tls-ca", &settings.tls.authority,
             "with --from-router: PEM authorities of the router");
  flags.Text("tls-cert", &settings.tls.certificate,
             "with --from-router: PEM certificate to show to it");
  flags.Text("tls-key", &settings.tls.key, "PEM key of --tls-cert");
  flags.Text("transport", &settings.transport,
             "with --rates or --from-router: transport to ask about; empty: the first");
  flags.Switch("json", &settings.json, "print one JSON object");
  flags.Text("svg", &settings.svg, "also write a plot to this file");
}

void AddHogwild(baton::Flags& flags, baton::HogwildOptions& options) {
  flags.Integer("workers", &options.workers, 1, 1024, "workers on one answer");
  flags.Number("coordination", &options.coordination, 0, 1,
               "probability that a worker takes the work that is behind");
  flags.Integer("steps", &options.steps, 1, 1'000'000, "decode steps to simulate");
  flags.Integer("seed", &options.seed, 0, 0xFFFFFFFF, "worker i draws from seed + i");
  flags.Choice("view", &options.view, {"immediate", "stale"},
               "what workers see of each other within a step");
  flags.Number("serial-steps", &options.serial_steps, 1, 1e12, "formula: T, steps of one worker");
  flags.Number("parallel", &options.parallel, 0, 1, "formula: p, share that can be divided");
  flags.Number("overhead", &options.overhead_steps, 0, 1e12, "formula: c, steps for each worker");
  flags.Number("depth", &options.depth_tokens, 0, kMostTokens,
               "with --rates: context of a step, tokens");
}

void AddDisagg(baton::Flags& flags, baton::DisaggOptions& options) {
  flags.Number("prompt", &options.prompt_tokens, 1, kMostTokens, "prompt tokens");
  flags.Number("output", &options.output_tokens, 0, kMostTokens, "output tokens");
  flags.Number("depth", &options.depth_tokens, 0, kMostTokens,
               "with --rates: context of streams that run meanwhile, tokens");
}

void AddRegions(baton::Flags& flags, baton::RegionsOptions& options) {
  flags.Integer("slots", &options.slots, 1, 1'000'000, "prefixes that a replica keeps");
  flags.Choice("eviction", &options.eviction, {"first-in", "least-recent", "random"},
               kEvictionHelp);
  flags.Integer("eviction-seed", &options.eviction_seed, 0, 0xFFFFFFFF, "for --eviction random");
  flags.Switch("affinity", &options.affinity, "local replica by prefix, not by queue depth");
  flags.Switch("residency", &options.residency, "requests stay in their zone: US, EU");
  flags.Number("prompt", &options.prompt_tokens, 1, kMostTokens, "with --rates: prompt tokens");
  flags.Number("uncached", &options.uncached_tokens, 0, kMostTokens,
               "with --rates: tokens that a hit computes");
}

void AddOffload(baton::Flags& flags, baton::OffloadOptions& options) {
  flags.OptionalInteger("slots", &options.slots, 1, 1'000'000,
                        "prefixes that an engine keeps; absent: 4 for native-only, else all");
  flags.Choice("eviction", &options.eviction, {"first-in", "least-recent", "random"},
               kEvictionHelp);
  flags.Integer("eviction-seed", &options.eviction_seed, 0, 0xFFFFFFFF, "for --eviction random");
  flags.Number("load-ms-per-block", &options.load_ms_per_block, 0, 1e6,
               "ms to load a block of 16 tokens from the shared store");
}

void AddSize(baton::Flags& flags, baton::SizeOptions& options) {
  flags.Number("rate", &options.requests_per_second, 1e-9, 1e6, "requests per second");
  flags.Number("prompt", &options.prompt_tokens, 1, 1e7, "prompt tokens");
  flags.Number("output", &options.output_tokens, 1, 1e7, "output tokens");
  flags.Number("utilisation", &options.most_utilisation, 0.01, 0.99, "most of any worker");
  flags.Number("gpu-bytes", &options.gpu_bytes, 1, 1e18, "without --rates: memory of a GPU");
  flags.Number("gpu-bandwidth", &options.gpu_bytes_per_second, 1, 1e18,
               "without --rates: bytes per second that a GPU reads");
  flags.Number("weight-bytes", &options.weight_bytes, 0, 1e18, "without --rates: weights");
  flags.Number("first-token-limit", &options.first_token_limit_seconds, 1e-6, 1e6,
               "with --rates: seconds to the first token");
  flags.Number("token-limit", &options.token_limit_seconds, 1e-6, 1e6,
               "with --rates: seconds between tokens");
  flags.Number("quantile", &options.quantile, 0, 0.9999, "with --rates: share inside the limits");
  flags.Number("prompt-variation", &options.prompt_squared_variation, 0, 1000,
               "with --rates: variance of a prefill's time over its squared mean");
}

void AddCrossover(baton::Flags& flags, baton::CrossoverOptions& options) {
  flags.Number("prompt", &options.prompt_tokens, 1, 32'768, "prompt tokens that are asked about");
  flags.Number("output", &options.output_tokens, 0, kMostTokens, "output tokens");
  flags.Number("depth", &options.depth_tokens, 0, kMostTokens,
               "with --rates: context of streams that run meanwhile, tokens");
  flags.Number("prefill-queue", &options.prefill_queue_tokens, 0, kMostTokens,
               "with --rates: prompt tokens that the prefill worker computes first");
  flags.Number("round-trip-ms", &options.round_trip_ms, 0, 1e6,
               "with --rates: to another region and back");
  flags.Number("uncached", &options.uncached_tokens, 0, kMostTokens,
               "with --rates: tokens that a hit there computes");
}

void AddFlags(baton::Flags& flags, PlanFlags& settings) {
  AddCommonFlags(flags, settings);
  AddHogwild(flags.Subcommand("hogwild", "Several workers that write one answer together."),
             settings.hogwild);
  AddDisagg(flags.Subcommand("disagg", "One request, colocated and disaggregated."),
            settings.disagg);
  AddRegions(flags.Subcommand("regions", "Routers over replicas in three regions."),
             settings.regions);
  AddOffload(flags.Subcommand("offload", "Prefixes that no longer fit: compute, keep or share."),
             settings.offload);
  AddSize(flags.Subcommand("size", "Prefill and decode workers for a rate of requests."),
          settings.size);
  AddCrossover(flags.Subcommand("crossover", "Where one way becomes quicker than the other."),
               settings.crossover);
}

absl::StatusOr<baton::MeasuredRates> LoadRates(const PlanFlags& settings) {
  if (!settings.router.empty()) {
    return baton::AskRouterForRates(settings.router, settings.tls);
  }
  ASSIGN_OR_RETURN(const baton::MappedFile file, baton::MappedFile::Open(settings.rates));
  return baton::ParseRates(settings.rates, file.bytes());
}

absl::StatusOr<std::optional<baton::CostModel>> LoadModel(const PlanFlags& settings) {
  if (settings.rates.empty() && settings.router.empty()) {
    return std::optional<baton::CostModel>();
  }
  ASSIGN_OR_RETURN(baton::MeasuredRates rates, LoadRates(settings));
  ASSIGN_OR_RETURN(baton::CostModel model, baton::CostModel::Fit(std::move(rates)));
  return std::optional<baton::CostModel>(std::move(model));
}

absl::StatusOr<baton::Report> Plan(const std::string& command,
                                   const PlanFlags& settings,
                                   const baton::Measured& measured) {
  if (command == "hogwild") {
    return baton::PlanHogwild(settings.hogwild, measured);
  }
  if (command == "disagg") {
    return baton::PlanDisagg(settings.disagg, measured);
  }
  if (command == "regions") {
    return baton::PlanRegions(settings.regions, measured);
  }
  if (command == "offload") {
    return baton::PlanOffload(settings.offload, measured);
  }
  if (command == "size") {
    return baton::PlanSize(settings.size, measured);
  }
  return baton::PlanCrossover(settings.crossover, measured);
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  return written && closed ? absl::OkStatus()
                           : absl::UnavailableError(absl::StrCat(path, ": writing failed"));
}

absl::Status Run(const std::string& command, const PlanFlags& settings) {
  ASSIGN_OR_RETURN(const std::optional<baton::CostModel> model, LoadModel(settings));
  const baton::Measured measured = {model.has_value() ? &*model : nullptr, settings.transport};
  ASSIGN_OR_RETURN(const baton::Report report, Plan(command, settings, measured));
  if (!settings.svg.empty()) {
    RETURN_IF_ERROR(WriteFile(settings.svg, baton::FormatSvg(report.plot)));
  }
  const std::string text = settings.json ? baton::FormatJson(report) : baton::FormatText(report);
  const bool printed =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return printed ? absl::OkStatus() : absl::UnavailableError("standard output: writing failed");
}

absl::Status CheckSource(const PlanFlags& settings) {
  if (settings.router.empty()) {
    if (!settings.tls.empty()) {
      return absl::InvalidArgumentError("--tls-ca, --tls-cert, --tls-key: need --from-router");
    }
    return settings.rates.empty() && !settings.transport.empty()
               ? absl::InvalidArgumentError("--transport: needs --rates or --from-router")
               : absl::OkStatus();
  }
  if (!settings.rates.empty()) {
    return absl::InvalidArgumentError("--from-router: takes the place of --rates: give one");
  }
  if (const absl::Status status = baton::CheckHostPort(settings.router); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--from-router: ", std::string(status.message())));
  }
  return baton::CheckTlsFiles(settings.tls, /*server=*/false);
}

}  // namespace

int main(int argc, char** argv) {
  PlanFlags settings;
  baton::Flags flags("baton-plan",
                     "Cost models and simulators of a Baton deployment: the course's numbers, or "
                     "with --rates or --from-router what was measured.");
  AddFlags(flags, settings);
  flags.Check([&settings] { return CheckSource(settings); });
  if (const std::optional<int> code = flags.Parse(argc, argv)) {
    return *code;
  }
  const std::string command = flags.chosen_subcommand();
  if (command.empty()) {
    std::fprintf(stderr,
                 "baton-plan: one of hogwild, disagg, regions, offload, size and crossover is "
                 "needed\nbaton-plan: see --help\n");
    return 2;
  }
  const absl::Status status = Run(command, settings);
  if (!status.ok()) {
    std::fprintf(stderr, "baton-plan: %s: %s\n", command.c_str(),
                 std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
