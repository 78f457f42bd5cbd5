// Measures the engine on a model: prefill, decode and batches, on one and two threads, as fractions
// of what the machine can do and beside llama.cpp. Method and members of the JSON object:
// docs/engine-bench.md.
//
//   engine-bench [--peer FOLDER] [--json] [--model MODEL] [--only NAME] [--threads N] ...
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/device_figures.h"
#include "bench/engine_report.h"
#include "bench/engine_rounds.h"
#include "common/flags.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "frontend/server_flags.h"
#include "kernels/backends.h"
#include "model/model_path.h"

namespace baton {
namespace {

constexpr char kWorkerName[] = "worker";  // beside the figures, for --only

struct EngineBenchFlags {
  std::string model;
  std::string cache;
  std::string peer;
  std::string device = "auto";
  std::string cpu_isa = "auto";
  std::optional<std::int64_t> threads;
  std::int64_t max_batch_tokens = 256;
  std::vector<std::string> only;
  std::int64_t time_limit_s = 420;
  std::int64_t rounds = 5;
  bool json = false;
};

std::vector<int> ThreadCounts(const EngineBenchFlags& settings) {
  return settings.threads.has_value() ? std::vector{static_cast<int>(*settings.threads)}
                                      : std::vector{1, 2};
}

bool IsChosen(const EngineBenchFlags& settings, const std::string& name) {
  return settings.only.empty() ||
         std::find(settings.only.begin(), settings.only.end(), name) != settings.only.end();
}

std::vector<Figure> ChosenFigures(const EngineBenchFlags& settings) {
  std::vector<Figure> figures = MakeFigures(ThreadCounts(settings));
  std::erase_if(figures, [&](const Figure& figure) { return !IsChosen(settings, figure.name); });
  return figures;
}

absl::Status CheckOnly(const EngineBenchFlags& settings) {
  const std::vector<Figure> figures = MakeFigures(ThreadCounts(settings));
  for (const std::string& name : settings.only) {
    const bool known =
        name == kWorkerName || std::any_of(figures.begin(), figures.end(),
                                           [&](const auto& figure) { return figure.name == name; });
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat("--only: there is no figure ", name));
    }
  }
  return absl::OkStatus();
}

void AddFlags(Flags& flags, EngineBenchFlags& settings) {
  flags.Text(
      "model", &settings.model,
      "GGUF file, Hugging Face directory, or a name in <cache>/models; empty: the example model");
  flags.Text("cache", &settings.cache, "folder that holds models/; the peer's model is kept there");
  flags.Text(
      "peer", &settings.peer,
      "folder with llama-bench, llama-batched-bench and llama-quantize; empty: no comparison");
  flags.Choice("device", &settings.device, {"auto", "cpu", "cuda", "emulated"},
               "where the model runs; auto takes a GPU where this build and machine have one, else "
               "the CPU; on a device: rates alone, when emulated not even these");
  flags.Choice("cpu-isa", &settings.cpu_isa, {"auto", "amx", "avx512bf16", "avx2", "plain"},
               "instructions of the CPU backend; auto takes the fastest this processor has");
  flags.OptionalInteger("threads", &settings.threads, 1, 256,
                        "compute threads, 1 to 256; absent: every figure with 1 and with 2");
  flags.Integer("max-batch-tokens", &settings.max_batch_tokens, 32, 8192,
                "rows of one step, 32 to 8192");
  flags.TextList("only", &settings.only,
                 "measure this figure alone, e.g. decode_0_2t, or `worker`; absent: all");
  flags.Integer("time-limit", &settings.time_limit_s, 0, 3600,
                "seconds after which no further round begins; the first always runs");
  flags.Integer("rounds", &settings.rounds, 1, 100, "most rounds, 1 to 100");
  flags.Switch("json", &settings.json, "print one JSON object");
  flags.Check([&settings] { return CheckOnly(settings); });
}

// Beside this program.
std::string WorkerProgram() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "baton-decode";
}

// Enough for the longest figure and for the one with most streams.
std::size_t DevicePoolBytes(const ModelConfig& config) {
  constexpr double kTokens = 8192;
  return static_cast<std::size_t>(kTokens * KvBytesPerToken(config));
}

absl::Status RunOnDevice(const EngineBenchFlags& settings,
                         ChosenBackend chosen,
                         const Checkpoint& checkpoint) {
  if (!settings.peer.empty() || settings.json) {
    return absl::InvalidArgumentError("--peer and --json are for --device cpu");
  }
  // A device has no number of threads: each figure once.
  std::vector<Figure> figures = ChosenFigures(settings);
  std::erase_if(figures, [](const Figure& figure) { return figure.threads > 1; });
  ASSIGN_OR_RETURN(const std::string table,
                   MeasureOnDevice(std::move(chosen), figures,
                                   {.max_batch_tokens = static_cast<int>(settings.max_batch_tokens),
                                    .kv_pool_bytes = DevicePoolBytes(checkpoint.config())},
                                   static_cast<int>(settings.rounds), checkpoint));
  std::fputs(table.c_str(), stdout);
  return absl::OkStatus();
}

absl::Status Run(const EngineBenchFlags& settings) {
  ASSIGN_OR_RETURN(const std::string path, ResolveModelPath(settings.model, settings.cache));
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                   Checkpoint::Open(path, settings.cache));
  if (settings.device != "cpu") {
    ASSIGN_OR_RETURN(ChosenBackend chosen,
                     CreateBackend({.device = settings.device, .cpu = {.isa = settings.cpu_isa}}));
    if (chosen.device != nullptr) {
      return RunOnDevice(settings, std::move(chosen), *checkpoint);
    }
  }
  std::unique_ptr<LlamaCpp> peer;
  if (!settings.peer.empty()) {
    const std::string fingerprint = ToHex(checkpoint->fingerprint()).substr(0, 16);
    ASSIGN_OR_RETURN(
        peer, LlamaCpp::Create(settings.peer, path,
                               absl::StrCat(settings.cache, "/bench/", fingerprint, "-bf16.gguf")));
  }
  EngineRoundsOptions options{
      .figures = ChosenFigures(settings),
      .isa = settings.cpu_isa,
      .max_batch_tokens = static_cast<int>(settings.max_batch_tokens),
      .peer = peer.get(),
      .time_limit = std::chrono::seconds(settings.time_limit_s),
      .most_rounds = static_cast<int>(settings.rounds),
      .progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }};
  if (IsChosen(settings, kWorkerName)) {
    options.worker = {.program = WorkerProgram(),
                      .model = path,
                      .cache = settings.cache,
                      .isa = settings.cpu_isa};
  }
  ASSIGN_OR_RETURN(const EngineReport report, MeasureEngine(options, *checkpoint));
  const std::string text = settings.json ? ToJson(report).dump(2) + "\n" : ToTable(report);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::EngineBenchFlags settings;
  settings.cache = baton::DefaultCacheFolder(std::getenv("HOME"));
  baton::Flags flags("engine-bench",
                     "Measures Baton's engine as fractions of what the machine can do, and beside "
                     "llama.cpp.");
  baton::AddFlags(flags, settings);
  if (const std::optional<int> code = flags.Parse(argc, argv); code.has_value()) {
    return *code;
  }
  baton::SetUpLog({.component = "engine-bench", .level = baton::LogLevel::kWarn});
  if (const absl::Status status = baton::Run(settings); !status.ok()) {
    std::fprintf(stderr, "engine-bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
