#include "bench/load_report.h"

#include <array>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMsPerSecond = 1000;

// mean_ttft_ms, median_ttft_ms, std_ttft_ms, p50_ttft_ms and so on.
void AddDistribution(const char* name, const Distribution& values, Json& out) {
  const auto add = [&](const char* statistic, double value) {
    out[absl::StrCat(statistic, "_", name, "_ms")] = value;
  };
  add("mean", values.mean);
  add("median", values.p50);
  add("std", values.deviation);
  add("p50", values.p50);
  add("p90", values.p90);
  add("p95", values.p95);
  add("p99", values.p99);
  add("max", values.max);
}

void AddSummary(const LoadSummary& summary, Json& out) {
  out["duration"] = summary.seconds;
  out["completed"] = summary.completed();
  out["failed"] = summary.failed;
  out["total_input_tokens"] = summary.input_tokens;
  out["total_output_tokens"] = summary.output_tokens;
  out["cached_prompt_tokens"] = summary.cached_prompt_tokens;
  out["request_throughput"] = summary.per_second(static_cast<double>(summary.completed()));
  out["request_goodput"] = summary.per_second(static_cast<double>(summary.good));
  out["good_share"] = summary.good_share();
  out["output_throughput"] = summary.per_second(summary.output_tokens);
  out["total_token_throughput"] = summary.per_second(summary.input_tokens + summary.output_tokens);
  AddDistribution("ttft", summary.first_token_ms, out);
  AddDistribution("tpot", summary.per_token_ms, out);
  AddDistribution("itl", summary.inter_token_ms, out);
  AddDistribution("e2el", summary.end_ms, out);
}

std::set<std::string> Kinds(const LoadRun& run) {
  std::set<std::string> kinds;
  for (const RequestRecord& record : run.records) {
    kinds.insert(record.kind);
  }
  return kinds;
}

SummaryOptions OfKind(const SummaryOptions& options, const std::string& kind) {
  SummaryOptions narrowed = options;
  narrowed.kind = kind;
  return narrowed;
}

void AddDetails(const LoadRun& run, const LoadSettings& settings, Json& out) {
  for (const char* list : {"input_lens", "output_lens", "ttfts", "itls", "errors"}) {
    out[list] = Json::array();
  }
  for (const RequestRecord& record : run.records) {
    if (record.scheduled < settings.summary.warm_up) {
      continue;
    }
    out["input_lens"].push_back(record.prompt_tokens);
    out["output_lens"].push_back(record.token_times.size());
    out["ttfts"].push_back(record.ok() ? FirstTokenMs(record) / kMsPerSecond : 0);
    Json gaps = Json::array();
    for (const double gap : InterTokenMs(record)) {
      gaps.push_back(gap / kMsPerSecond);
    }
    out["itls"].push_back(std::move(gaps));
    out["errors"].push_back(record.ok() ? "" : std::string(record.status.message()));
  }
}

void AppendRow(const char* name, const Distribution& values, std::string& out) {
  absl::StrAppendFormat(&out, "  %-22s %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f\n", name, values.mean,
                        values.p50, values.p90, values.p95, values.p99, values.max);
}

void AppendSummary(const std::string& title, const LoadSummary& summary, std::string& out) {
  absl::StrAppendFormat(&out, "%s: %d requests, %d failed, in %.1f s\n", title, summary.requests,
                        summary.failed, summary.seconds);
  absl::StrAppendFormat(&out,
                        "  %.2f requests/s, %.1f tokens/s out, %.1f tokens/s in and out; %.1f%% "
                        "within both limits, %.2f requests/s\n",
                        summary.per_second(static_cast<double>(summary.completed())),
                        summary.per_second(summary.output_tokens),
                        summary.per_second(summary.input_tokens + summary.output_tokens),
                        100 * summary.good_share(),
                        summary.per_second(static_cast<double>(summary.good)));
  absl::StrAppendFormat(&out, "  %-22s %9s %9s %9s %9s %9s %9s\n", "milliseconds", "mean", "p50",
                        "p90", "p95", "p99", "max");
  AppendRow("first token", summary.first_token_ms, out);
  AppendRow("between tokens", summary.inter_token_ms, out);
  AppendRow("per output token", summary.per_token_ms, out);
  AppendRow("whole request", summary.end_ms, out);
}

}  // namespace

Json LoadJson(const LoadRun& run, const LoadSettings& settings, bool details) {
  const LoadSummary summary = Summarize(run, settings.summary);
  Json out = {{"date", settings.date},
              {"endpoint_type", "baton-grpc"},
              {"backend", "baton"},
              {"label", settings.workload},
              {"server", settings.server},
              {"model_id", settings.model},
              {"num_prompts", summary.requests},
              {"arrivals", settings.arrivals},
              {"request_rate", settings.requests_per_second},
              {"burstiness", settings.burstiness}};
  AddSummary(summary, out);
  out["limits"] = {{"ttft_ms", settings.summary.limits.first_token_ms},
                   {"itl_ms", settings.summary.limits.inter_token_ms}};
  AddDistribution("send_lag", summary.send_lag_ms, out);
  out["generator_cpu_seconds"] = run.cpu_seconds;
  out["failures"] = summary.errors;
  const std::set<std::string> kinds = Kinds(run);
  if (kinds.size() > 1) {
    for (const std::string& kind : kinds) {
      AddSummary(Summarize(run, OfKind(settings.summary, kind)), out["by_kind"][kind]);
    }
  }
  if (details) {
    AddDetails(run, settings, out);
  }
  return out;
}

std::string LoadTable(const LoadRun& run, const LoadSettings& settings) {
  std::string out = absl::StrFormat(
      "%s at %s, %s; limits: first token %.0f ms, between tokens %.0f ms (95%% of a request's "
      "gaps)\n",
      settings.workload, settings.server, settings.model, settings.summary.limits.first_token_ms,
      settings.summary.limits.inter_token_ms);
  const LoadSummary summary = Summarize(run, settings.summary);
  AppendSummary("all", summary, out);
  const std::set<std::string> kinds = Kinds(run);
  if (kinds.size() > 1) {
    for (const std::string& kind : kinds) {
      AppendSummary(kind, Summarize(run, OfKind(settings.summary, kind)), out);
    }
  }
  for (const auto& [message, count] : summary.errors) {
    absl::StrAppend(&out, count, " failed: ", message, "\n");
  }
  absl::StrAppendFormat(&out, "the generator sent at most %.1f ms late and took %.2f of a core\n",
                        summary.send_lag_ms.max, run.cpu_seconds / std::max(summary.seconds, 1e-9));
  return out;
}

}  // namespace baton
