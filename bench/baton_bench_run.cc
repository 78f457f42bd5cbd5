#include "bench/baton_bench_run.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/load_generator.h"
#include "bench/load_report.h"
#include "bench/report_file.h"
#include "bench/report_page.h"
#include "bench/workload.h"
#include "client/completions_client.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr auto kAskPatience = std::chrono::seconds(10);
constexpr std::int64_t kMostContext = 1 << 20;  // tokens

ArrivalOptions Arrivals(const RunFlags& settings) {
  return {.kind = settings.arrivals == "fixed"    ? ArrivalKind::kFixed
                  : settings.arrivals == "bursts" ? ArrivalKind::kBursts
                                                  : ArrivalKind::kPoisson,
          .requests_per_second = settings.rate,
          .burst_requests = static_cast<int>(settings.burst),
          .seed = static_cast<std::uint64_t>(settings.seed)};
}

// A fifth of the requests are long ones of four times --prompt-tokens.
Workload MixedLoad(const RunFlags& settings, std::uint64_t seed) {
  const double seconds = static_cast<double>(settings.requests) / settings.rate;
  constexpr double kLongShare = 0.2;
  const int prompt = static_cast<int>(settings.prompt_tokens);
  return MakeMixedWorkload(
      {.chat = {.prompt = prompt, .output = static_cast<int>(settings.output_tokens)},
       .longer = {.prompt = 4 * prompt, .output = 8},
       .chats_per_second = settings.rate * (1 - kLongShare),
       .long_per_second = settings.rate * kLongShare,
       .duration = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds))},
      seed);
}

Workload SessionLoad(const RunFlags& settings, std::uint64_t seed) {
  const auto turns = static_cast<int>(settings.turns);
  return MakeSessionWorkload(
      {.system_tokens = static_cast<int>(settings.system_tokens),
       .turns = turns,
       .turn = {.prompt = static_cast<int>(settings.prompt_tokens),
                .output = static_cast<int>(settings.output_tokens)},
       .sessions_per_second = settings.rate / turns,
       .sessions = static_cast<std::size_t>((settings.requests + turns - 1) / turns)},
      seed);
}

absl::StatusOr<Workload> TraceLoad(const RunFlags& settings,
                                   std::uint64_t seed,
                                   int context_tokens) {
  ASSIGN_OR_RETURN(const Trace trace,
                   ReadTraceFile(settings.trace, static_cast<int>(settings.length_divisor)));
  const bool own_times = settings.arrivals == "trace";
  ASSIGN_OR_RETURN(Workload workload,
                   MakeTraceWorkload(trace,
                                     {.first = static_cast<std::size_t>(settings.first),
                                      .requests = static_cast<std::size_t>(settings.requests),
                                      .requests_per_second = own_times ? settings.rate : 0,
                                      .most_context_tokens = context_tokens},
                                     seed));
  return own_times ? workload : WithArrivals(std::move(workload), Arrivals(settings));
}

absl::StatusOr<Workload> MakeLoad(const RunFlags& settings, int context_tokens) {
  const auto seed = static_cast<std::uint64_t>(settings.seed);
  Workload workload;
  if (settings.workload == "trace") {
    ASSIGN_OR_RETURN(workload, TraceLoad(settings, seed, context_tokens));
  } else if (settings.workload == "mixed") {
    workload = MixedLoad(settings, seed);
  } else if (settings.workload == "sessions") {
    workload = SessionLoad(settings, seed);
  } else {
    workload =
        MakeUniformWorkload({.prompt = static_cast<int>(settings.prompt_tokens),
                             .output = static_cast<int>(settings.output_tokens)},
                            Arrivals(settings), static_cast<std::size_t>(settings.requests), seed);
  }
  for (LoadRequest& request : workload.requests) {
    request.path = settings.path == "colocated"       ? v1::PATH_COLOCATED
                   : settings.path == "disaggregated" ? v1::PATH_DISAGGREGATED
                                                      : v1::PATH_UNSPECIFIED;
  }
  return workload;
}

// One line that is written over on a terminal, and a line every ten seconds elsewhere.
void ShowProgress(const LoadProgress& now) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const double seconds = std::chrono::duration<double>(now.elapsed).count();
  if (terminal || static_cast<int>(seconds) % 10 == 0) {
    std::fprintf(stderr, "%s%6.0f s  sent %zu of %zu  open %zu  failed %zu%s", terminal ? "\r" : "",
                 seconds, now.sent, now.total, now.sent - now.ended, now.failed,
                 terminal ? " \x1b[K" : "\n");
  }
}

LoadSettings SettingsForReport(const RunFlags& settings, const std::string& model) {
  return {.date = absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::UTCTimeZone()),
          .server = settings.server,
          .model = model,
          .workload = settings.workload == "trace"
                          ? std::filesystem::path(settings.trace).filename().string()
                          : settings.workload,
          .arrivals = settings.arrivals,
          .requests_per_second = settings.rate,
          .burstiness = settings.arrivals == "fixed" ? 0.0 : 1.0,
          .summary = {.warm_up = std::chrono::duration_cast<Duration>(
                          std::chrono::duration<double>(settings.warm_up_s)),
                      .limits = {.first_token_ms = settings.ttft_limit_ms,
                                 .inter_token_ms = settings.itl_limit_ms}}};
}

}  // namespace

void AddRunFlags(Flags& flags, RunFlags& settings) {
  flags.Text("server", &settings.server, "host:port of a router or decode worker");
  flags.Text("tls-cert", &settings.tls.certificate, "PEM certificate to show to the server");
  flags.Text("tls-key", &settings.tls.key, "PEM key of --tls-cert");
  flags.Text("tls-ca", &settings.tls.authority, "PEM authorities of the server");
  flags.Choice("workload", &settings.workload, {"random", "mixed", "sessions", "trace"},
               "random: all alike; mixed: four of five as --prompt-tokens says, one four times as "
               "long; sessions: chats whose turns share a prefix; trace: --trace");
  flags.Text("trace", &settings.trace, "Mooncake (JSON lines) or Azure (.csv) trace");
  flags.Integer(
      "length-divisor", &settings.length_divisor, 1, kMooncakeHashedTokens,
      "lengths of the trace are divided by this, a power of 2; 32 makes Mooncake's hashed "
      "pieces blocks of 16 tokens");
  flags.Integer("first", &settings.first, 0, 1 << 30, "index of the trace's first request");
  flags.Integer("requests", &settings.requests, 1, 10'000'000, "how many, warm-up included");
  flags.Choice(
      "arrivals", &settings.arrivals, {"poisson", "fixed", "bursts", "trace"},
      "when they come, whatever the server does; trace: as in the trace, stretched to --rate");
  flags.Number("rate", &settings.rate, 1e-3, 1e5, "requests a second, on average");
  flags.Integer("burst", &settings.burst, 1, 10'000, "requests of a burst");
  flags.Integer("prompt-tokens", &settings.prompt_tokens, 1, kMostContext, "of a prompt or turn");
  flags.Integer("output-tokens", &settings.output_tokens, 1, kMostContext, "of a completion");
  flags.Integer("turns", &settings.turns, 1, 1000, "of a session");
  flags.Integer("system-tokens", &settings.system_tokens, 1, kMostContext,
                "that all sessions begin with");
  flags.Choice("path", &settings.path, {"auto", "colocated", "disaggregated"},
               "way of the requests");
  flags.Number("warm-up", &settings.warm_up_s, 0, 1e5,
               "seconds: requests that are due before are sent, but not counted");
  flags.Number("ttft-limit", &settings.ttft_limit_ms, 0, 1e9,
               "milliseconds to the first token within which a request is good");
  flags.Number("itl-limit", &settings.itl_limit_ms, 0, 1e9,
               "milliseconds between tokens, for 95% of a request's gaps");
  flags.Integer("timeout", &settings.timeout_s, 1, 86'400, "seconds until a request is given up");
  flags.Integer("seed", &settings.seed, 0, 1 << 30, "of prompts and arrivals");
  flags.Text("json", &settings.json, "file for the result as JSON; - is standard output");
  flags.Text("html", &settings.html, "file for a report with plots");
  flags.Switch("details", &settings.details, "every request's times in the JSON too");
}

absl::Status CheckRun(const RunFlags& settings) {
  if (settings.workload == "trace" && settings.trace.empty()) {
    return absl::InvalidArgumentError("--trace: needed by --workload trace");
  }
  if (settings.workload != "trace" && settings.arrivals == "trace") {
    return absl::InvalidArgumentError("--arrivals: trace is for --workload trace");
  }
  if (kMooncakeHashedTokens % settings.length_divisor != 0) {
    return absl::InvalidArgumentError("--length-divisor: not a power of 2 up to 512");
  }
  return CheckTlsFiles(settings.tls, /*server=*/false);
}

absl::Status RunLoad(const RunFlags& settings) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CompletionsClient> client,
                   CompletionsClient::Create(settings.server, settings.tls));
  ASSIGN_OR_RETURN(const v1::ListModelsResponse models, client->ListModels(kAskPatience));
  if (models.models().empty()) {
    return absl::FailedPreconditionError(settings.server + " serves no model");
  }
  const v1::Model& model = models.models(0);
  ASSIGN_OR_RETURN(const Workload workload,
                   MakeLoad(settings, static_cast<int>(model.context_tokens())));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<LoadGenerator> generator,
      LoadGenerator::Create({.server = settings.server,
                             .tls = settings.tls,
                             .vocabulary = OrdinaryTokens(model.vocabulary_size()),
                             .request_timeout = std::chrono::seconds(settings.timeout_s),
                             .progress = ShowProgress}));
  ASSIGN_OR_RETURN(const LoadRun run, generator->Run(workload));
  if (isatty(STDERR_FILENO) != 0) {
    std::fputs("\r\x1b[K", stderr);
  }
  const LoadSettings described = SettingsForReport(settings, model.name());
  if (!settings.json.empty()) {
    const std::string text = LoadJson(run, described, settings.details).dump(2) + "\n";
    if (settings.json == "-") {
      std::fputs(text.c_str(), stdout);
    } else {
      RETURN_IF_ERROR(WriteReportFile(settings.json, text));
    }
  }
  if (settings.json != "-") {
    std::fputs(LoadTable(run, described).c_str(), stdout);
  }
  if (!settings.html.empty()) {
    RETURN_IF_ERROR(WriteReportFile(settings.html, LoadPage(run, described)));
  }
  const LoadSummary summary = Summarize(run, described.summary);
  if (summary.requests > 0 && summary.completed() == 0) {
    return absl::UnavailableError(
        absl::StrCat("every request failed: ", summary.errors.begin()->first));
  }
  return absl::OkStatus();
}

}  // namespace baton
