#include "bench/engine_report.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

using RoundValue = std::function<std::optional<double>(const FigureRound&)>;

// Over the rounds that have the value; nullopt when none has.
std::optional<double> MedianOf(const FigureResult& result, const RoundValue& value) {
  std::vector<double> values;
  for (const FigureRound& round : result.rounds) {
    if (const std::optional<double> one = value(round)) {
      values.push_back(*one);
    }
  }
  return values.empty() ? std::nullopt : std::optional(Median(std::move(values)));
}

// Tokens per second from a time, and the other way round.
std::optional<double> Rate(const Figure& figure, std::optional<double> seconds) {
  return seconds.has_value() ? std::optional(figure.tokens() / *seconds) : std::nullopt;
}

std::optional<double> Ratio(std::optional<double> ours, std::optional<double> peer) {
  return ours.has_value() && peer.has_value() ? std::optional(*ours / *peer) : std::nullopt;
}

Json OrNull(std::optional<double> value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

// All figures of one row; absent where the peer did not run.
struct Summary {
  std::optional<double> wall_seconds;
  std::optional<double> cpu_seconds;
  std::optional<double> fraction_of_limit;
  std::optional<double> fraction_of_limit_cpu;
  std::optional<double> peer_wall_seconds;
  std::optional<double> peer_cpu_seconds;
  std::optional<double> as_given_wall_seconds;
  std::optional<double> as_given_cpu_seconds;
  std::optional<double> long_steps_wall_seconds;
  Limits limits;
  std::optional<double> fraction_of_tile_limit;
  double tile_flops_per_second = 0;
};

std::optional<double> WallOf(const std::optional<PeerTiming>& peer) {
  return peer.has_value() ? std::optional(peer->timing.wall_seconds) : std::nullopt;
}
std::optional<double> CpuOf(const std::optional<PeerTiming>& peer) {
  return peer.has_value() ? std::optional(peer->timing.cpu_seconds) : std::nullopt;
}

Summary Summarize(const FigureResult& result) {
  const auto over_rounds = [&](const RoundValue& value) { return MedianOf(result, value); };
  Summary summary;
  summary.wall_seconds = over_rounds([](const auto& round) { return round.ours.wall_seconds; });
  summary.cpu_seconds = over_rounds([](const auto& round) { return round.ours.cpu_seconds; });
  summary.fraction_of_limit = over_rounds([&](const auto& round) {
    return FloorSeconds(result.work, round.limits) / round.ours.wall_seconds;
  });
  // The processor time of all threads together, as if they had shared the work evenly.
  summary.fraction_of_limit_cpu = over_rounds([&](const auto& round) {
    return FloorSeconds(result.work, round.limits) * result.figure.threads / round.ours.cpu_seconds;
  });
  summary.peer_wall_seconds = over_rounds([](const auto& round) { return WallOf(round.peer); });
  summary.peer_cpu_seconds = over_rounds([](const auto& round) { return CpuOf(round.peer); });
  summary.as_given_wall_seconds =
      over_rounds([](const auto& round) { return WallOf(round.peer_as_given); });
  summary.as_given_cpu_seconds =
      over_rounds([](const auto& round) { return CpuOf(round.peer_as_given); });
  summary.long_steps_wall_seconds = over_rounds([](const auto& round) {
    return round.ours_long_steps.has_value() ? std::optional(round.ours_long_steps->wall_seconds)
                                             : std::nullopt;
  });
  summary.limits = {*over_rounds([](const auto& round) { return round.limits.flops_per_second; }),
                    *over_rounds([](const auto& round) { return round.limits.bytes_per_second; })};
  summary.tile_flops_per_second =
      *over_rounds([](const auto& round) { return round.tile_flops_per_second; });
  summary.fraction_of_tile_limit = over_rounds([&](const auto& round) -> std::optional<double> {
    if (round.tile_flops_per_second == 0) {
      return std::nullopt;
    }
    const Limits tiles{round.tile_flops_per_second, round.limits.bytes_per_second};
    return FloorSeconds(result.work, tiles) / round.ours.wall_seconds;
  });
  return summary;
}

// Least and largest of ours / peer over the rounds; null without a peer.
Json RatioRange(const FigureResult& result) {
  std::vector<double> ratios;
  for (const FigureRound& round : result.rounds) {
    if (round.peer.has_value()) {
      ratios.push_back(round.peer->timing.wall_seconds / round.ours.wall_seconds);
    }
  }
  if (ratios.empty()) {
    return nullptr;
  }
  const auto [least, largest] = std::minmax_element(ratios.begin(), ratios.end());
  return Json::array({*least, *largest});
}

Json ToJson(const FigureResult& result) {
  const Figure& figure = result.figure;
  const Summary summary = Summarize(result);
  const std::optional<double> rate = Rate(figure, summary.wall_seconds);
  const std::optional<double> peer_rate = Rate(figure, summary.peer_wall_seconds);
  Json json = {
      {"name", figure.name},
      {"tokens_per_s", OrNull(rate)},
      {"fraction_of_limit", OrNull(summary.fraction_of_limit)},
      {"peer_tokens_per_s", OrNull(peer_rate)},
      {"ratio_to_peer", OrNull(Ratio(rate, peer_rate))},
      {"ratio_to_peer_range", RatioRange(result)},
      {"threads", figure.threads},
      {"rounds", result.rounds.size()},
      {"tokens", figure.tokens()},
      {"wall_seconds", OrNull(summary.wall_seconds)},
      {"cpu_seconds", OrNull(summary.cpu_seconds)},
      {"peer_wall_seconds", OrNull(summary.peer_wall_seconds)},
      {"peer_cpu_seconds", OrNull(summary.peer_cpu_seconds)},
      {"ratio_to_peer_cpu", OrNull(Ratio(summary.peer_cpu_seconds, summary.cpu_seconds))},
      {"fraction_of_limit_cpu", OrNull(summary.fraction_of_limit_cpu)},
      {"limit_name", LimitName(result.work, summary.limits)},
      {"flops", result.work.flops},
      {"bytes", result.work.bytes},
      {"peak_gflops", summary.limits.flops_per_second * 1e-9},
      {"fraction_of_tile_limit", OrNull(summary.fraction_of_tile_limit)},
      {"peak_tiles_gflops", summary.tile_flops_per_second == 0
                                ? Json(nullptr)
                                : Json(summary.tile_flops_per_second * 1e-9)},
      {"read_gb_per_s", summary.limits.bytes_per_second * 1e-9},
  };
  if (summary.long_steps_wall_seconds.has_value()) {
    json[absl::StrCat("tokens_per_s_step_", kLongStepTokens)] =
        OrNull(Rate(figure, summary.long_steps_wall_seconds));
  }
  if (summary.as_given_wall_seconds.has_value()) {
    const std::optional<double> as_given = Rate(figure, summary.as_given_wall_seconds);
    json["peer_q4_1_tokens_per_s"] = OrNull(as_given);
    json["ratio_to_peer_q4_1"] = OrNull(Ratio(rate, as_given));
    json["ratio_to_peer_q4_1_cpu"] =
        OrNull(Ratio(summary.as_given_cpu_seconds, summary.cpu_seconds));
    json["peer_q4_1_repacked"] =
        std::all_of(result.rounds.begin(), result.rounds.end(), [](const FigureRound& round) {
          return !round.peer_as_given.has_value() || round.peer_as_given->repacked;
        });
  }
  return json;
}

// Of one value of the footprints of all rounds.
double WorkerMedian(const EngineReport& report,
                    const std::function<double(const WorkerFootprint&)>& value) {
  std::vector<double> values;
  for (const WorkerFootprint& footprint : report.worker) {
    values.push_back(value(footprint));
  }
  return Median(std::move(values));
}

Json WorkerJson(const EngineReport& report) {
  if (report.worker.empty()) {
    return nullptr;
  }
  const auto bytes = [&](std::size_t WorkerFootprint::*member) {
    return static_cast<std::size_t>(
        WorkerMedian(report, [member](const WorkerFootprint& footprint) {
          return static_cast<double>(footprint.*member);
        }));
  };
  return {{"start_seconds",
           WorkerMedian(report, [](const auto& footprint) { return footprint.start_seconds; })},
          {"start_cpu_seconds",
           WorkerMedian(report, [](const auto& footprint) { return footprint.start_cpu_seconds; })},
          {"resident_bytes", bytes(&WorkerFootprint::resident_bytes)},
          {"resident_file_bytes", bytes(&WorkerFootprint::resident_file_bytes)},
          {"resident_at_ready_bytes", bytes(&WorkerFootprint::resident_at_ready_bytes)}};
}

std::string Percent(std::optional<double> fraction) {
  return fraction.has_value() ? absl::StrFormat("%.0f%%", 100 * *fraction) : "-";
}
std::string Number(std::optional<double> value, const char* suffix) {
  return value.has_value() ? absl::StrFormat("%.*f%s", *value < 100 ? 2 : 0, *value, suffix) : "-";
}

}  // namespace

double Median(std::vector<double> values) {
  BATON_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

nlohmann::ordered_json ToJson(const EngineReport& report) {
  Json results = Json::array();
  for (const FigureResult& result : report.results) {
    results.push_back(ToJson(result));
  }
  return {{"results", std::move(results)},
          {"worker", WorkerJson(report)},
          {"model", report.model},
          {"isa", report.isa.empty() ? Json(nullptr) : Json(report.isa)},
          {"max_batch_tokens", report.max_batch_tokens},
          {"peer", report.has_peer ? Json("llama.cpp") : Json(nullptr)},
          {"seconds", report.seconds}};
}

std::string ToTable(const EngineReport& report) {
  std::string table = absl::StrFormat("%s, %s, steps of %d tokens, %.0f s\n", report.model,
                                      report.isa, report.max_batch_tokens, report.seconds);
  absl::StrAppend(&table,
                  absl::StrFormat("%-16s %10s %8s %8s %6s %8s %10s %8s %8s %10s %8s\n", "figure",
                                  "tokens/s", "of limit", "by CPU", "limit", "of tiles", "peer",
                                  "ratio", "by CPU", "peer Q4_1", "ratio"));
  for (const FigureResult& result : report.results) {
    const Summary summary = Summarize(result);
    const std::optional<double> rate = Rate(result.figure, summary.wall_seconds);
    const std::optional<double> peer = Rate(result.figure, summary.peer_wall_seconds);
    const std::optional<double> as_given = Rate(result.figure, summary.as_given_wall_seconds);
    absl::StrAppend(
        &table, absl::StrFormat(
                    "%-16s %10s %8s %8s %6s %8s %10s %8s %8s %10s %8s\n", result.figure.name,
                    Number(rate, ""), Percent(summary.fraction_of_limit),
                    Percent(summary.fraction_of_limit_cpu), LimitName(result.work, summary.limits),
                    Percent(summary.fraction_of_tile_limit), Number(peer, ""),
                    Number(Ratio(rate, peer), "x"),
                    Number(Ratio(summary.peer_cpu_seconds, summary.cpu_seconds), "x"),
                    Number(as_given, ""), Number(Ratio(rate, as_given), "x")));
  }
  if (!report.worker.empty()) {
    const Json worker = WorkerJson(report);
    absl::StrAppend(&table,
                    absl::StrFormat("worker: ready after %.2f s, %.0f MB resident besides the pool "
                                    "(%.0f MB of them pages of files)\n",
                                    worker["start_seconds"].get<double>(),
                                    worker["resident_bytes"].get<double>() * 1e-6,
                                    worker["resident_file_bytes"].get<double>() * 1e-6));
  }
  return table;
}

}  // namespace baton
