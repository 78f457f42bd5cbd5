#include "bench/router_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const TraceFigure& figure) {
  const ReplayResult& prefix = figure.prefix;
  const ReplayResult& round_robin = figure.round_robin;
  Json json = {{"name", figure.name},
               {"load", figure.load},
               {"hit_rate", prefix.hit_rate()},
               {"hit_rate_round_robin", round_robin.hit_rate()},
               {"mean_ttft_s", prefix.first_token_seconds},
               {"mean_ttft_round_robin_s", round_robin.first_token_seconds},
               {"p99_ttft_s", prefix.p99_first_token_seconds},
               {"p99_ttft_round_robin_s", round_robin.p99_first_token_seconds},
               {"busy", prefix.busy},
               {"busy_round_robin", round_robin.busy},
               {"largest_share", prefix.largest_share},
               {"requests", prefix.requests},
               {"workers", figure.setup.workers}};
  json["blocks_per_worker"] =
      figure.setup.blocks_per_worker.has_value() ? Json(*figure.setup.blocks_per_worker) : Json();
  return json;
}

// One over the other; 0 when there is no other.
double Ratio(double one, double other) {
  return other > 0 ? one / other : 0;
}

void AppendDecision(const DecisionFigures& decision, std::string& table) {
  absl::StrAppendFormat(&table, "%-34s %10s %10s %12s %12s\n", "decision, us", "p50", "p99",
                        "clock p50", "clock p99");
  const auto row = [&table](const std::string& name, const DecisionTimes& times) {
    absl::StrAppendFormat(&table, "%-34s %10.1f %10.1f %12.1f %12.1f\n", name, times.p50_us,
                          times.p99_us, times.clock_p50_us, times.clock_p99_us);
  };
  row("  all", decision.all);
  row("  nothing else going on", decision.quiet);
  row("  with updates", decision.with_updates);
  row("arithmetic as long, in turn, us", decision.machine);
  absl::StrAppendFormat(&table, "%-34s %10.0f\n", "  block updates meanwhile, 1/s",
                        decision.updates_per_second);
  absl::StrAppendFormat(&table, "%-34s %10.1f\n", "  of it the look-up", decision.match_us);
  absl::StrAppendFormat(&table, "%-34s %10.1f\n", "hashing a prompt, us", decision.hash_us);
  absl::StrAppendFormat(&table, "%-34s %10.1f\n", "index, bytes a block and worker",
                        decision.index_bytes_per_entry);
  absl::StrAppendFormat(&table, "%-34s %10d\n%-34s %10d\n\n", "index, blocks",
                        decision.index_blocks, "index, pairs of block and worker",
                        decision.index_entries);
}

}  // namespace

std::string ToJson(const RouterBenchReport& report) {
  Json json = Json::object();
  if (report.decision.has_value()) {
    const DecisionFigures& decision = *report.decision;
    json = {{"decision_p50_us", decision.all.p50_us},
            {"decision_p99_us", decision.all.p99_us},
            {"decision_clock_p50_us", decision.all.clock_p50_us},
            {"decision_clock_p99_us", decision.all.clock_p99_us},
            {"decision_quiet_p50_us", decision.quiet.p50_us},
            {"decision_quiet_p99_us", decision.quiet.p99_us},
            {"decision_with_updates_p50_us", decision.with_updates.p50_us},
            {"decision_with_updates_p99_us", decision.with_updates.p99_us},
            {"machine_p50_us", decision.machine.p50_us},
            {"machine_p99_us", decision.machine.p99_us},
            {"updates_per_s", decision.updates_per_second},
            {"match_us", decision.match_us},
            {"hash_us", decision.hash_us},
            {"index_bytes_per_entry", decision.index_bytes_per_entry},
            {"index_blocks", decision.index_blocks},
            {"index_entries", decision.index_entries}};
  }
  json["rates"] = report.rates_source;
  json["traces"] = Json::array();
  for (const TraceFigure& figure : report.traces) {
    json["traces"].push_back(ToJson(figure));
  }
  return json.dump(2) + "\n";
}

std::string ToTable(const RouterBenchReport& report) {
  std::string table;
  if (report.decision.has_value()) {
    AppendDecision(*report.decision, table);
  }
  if (report.traces.empty()) {
    return table;
  }
  absl::StrAppendFormat(&table, "%-22s %-10s %8s %12s %6s %10s %12s %6s %6s %6s\n", "trace", "load",
                        "hits", "round-robin", "times", "TTFT, s", "round-robin", "times", "busy",
                        "share");
  for (const TraceFigure& figure : report.traces) {
    const ReplayResult& prefix = figure.prefix;
    const ReplayResult& other = figure.round_robin;
    absl::StrAppendFormat(
        &table, "%-22s %-10s %7.2f%% %11.2f%% %6.2f %10.4f %12.4f %6.2f %5.0f%% %6.2f\n",
        figure.name, figure.load, 100 * prefix.hit_rate(), 100 * other.hit_rate(),
        Ratio(prefix.hit_rate(), other.hit_rate()), prefix.first_token_seconds,
        other.first_token_seconds, Ratio(other.first_token_seconds, prefix.first_token_seconds),
        100 * prefix.busy, prefix.largest_share);
  }
  absl::StrAppendFormat(&table, "times simulated with the rates of: %s\n", report.rates_source);
  return table;
}

}  // namespace baton
