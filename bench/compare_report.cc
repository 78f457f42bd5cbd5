#include "bench/compare_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "planner/rates_file.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGoodShare = 0.9;

Spread SpreadOf(const std::vector<double>& values) {
  const Distribution described = Describe(values);
  return {.median = described.p50,
          .least = values.empty() ? 0 : *std::min_element(values.begin(), values.end()),
          .most = described.max};
}

double Over(double a, double b) {
  return b > 0 ? a / b : 0;
}

LoadSummary SummaryOf(const LoadRun& run, const ComparedWorkload& workload, std::string kind = "") {
  return Summarize(run, {.kind = std::move(kind), .limits = workload.limits});
}

const RatePoint* PointAt(const SetUpRuns& set_up, double rate) {
  for (const RatePoint& point : set_up.points) {
    if (point.rate == rate) {
      return &point;
    }
  }
  return nullptr;
}

Goodput GoodputOf(const SetUpRuns& set_up, const ComparedWorkload& workload) {
  std::optional<double> share;  // at `rate`
  double rate = 0;
  for (const RatePoint& point : set_up.points) {
    const double next = GoodShare(point, workload.limits);
    if (next < kGoodShare) {
      if (!share.has_value()) {
        return {.requests_per_second = point.rate, .below_lowest = true};
      }
      const double part = (*share - kGoodShare) / (*share - next);
      return {.requests_per_second = rate + part * (point.rate - rate)};
    }
    rate = point.rate;
    share = next;
  }
  return {.requests_per_second = rate, .at_highest = true};
}

Known KnownOf(const Goodput& numerator, const Goodput& denominator) {
  const bool may_be_more = numerator.at_highest || denominator.below_lowest;
  const bool may_be_less = numerator.below_lowest || denominator.at_highest;
  return may_be_more ? (may_be_less ? Known::kNothing : Known::kAtLeast)
                     : (may_be_less ? Known::kAtMost : Known::kExactly);
}

const char* KnownName(Known known) {
  switch (known) {
    case Known::kExactly:
      return "exactly";
    case Known::kAtLeast:
      return "at least";
    case Known::kAtMost:
      return "at most";
    case Known::kNothing:
      return "nothing";
  }
  return "";
}

Json SpreadJson(const Spread& spread) {
  return Json::array({spread.least, spread.most});
}

Json SideJson(const SideFigures& side) {
  return {{"ttft_p50_ms", side.ttft_p50_ms.median},
          {"ttft_p99_ms", side.ttft_p99_ms.median},
          {"itl_p50_ms", side.itl_p50_ms.median},
          {"itl_p99_ms", side.itl_p99_ms.median},
          {"output_tokens_per_s", side.output_tokens_per_s.median},
          {"goodput_rps", side.goodput.requests_per_second},
          {"goodput_below_lowest_rate", side.goodput.below_lowest},
          {"goodput_at_highest_rate", side.goodput.at_highest},
          {"peak_output_tokens_per_s", side.peak_output_tokens_per_s},
          {"failed_share", side.failed_share},
          {"range",
           {{"ttft_p50_ms", SpreadJson(side.ttft_p50_ms)},
            {"ttft_p99_ms", SpreadJson(side.ttft_p99_ms)},
            {"itl_p50_ms", SpreadJson(side.itl_p50_ms)},
            {"itl_p99_ms", SpreadJson(side.itl_p99_ms)},
            {"output_tokens_per_s", SpreadJson(side.output_tokens_per_s)}}}};
}

Json ByKindJson(const SetUpRuns& set_up, const ComparedWorkload& workload) {
  Json by_kind = Json::object();
  const RatePoint* point = PointAt(set_up, workload.reference_rate);
  std::map<std::string, std::vector<double>> first;
  if (point != nullptr) {
    for (const LoadRun& run : point->runs) {
      for (const RequestRecord& record : run.records) {
        if (record.ok()) {
          first[record.kind].push_back(FirstTokenMs(record));
        }
      }
    }
  }
  for (auto& [kind, values] : first) {
    const Distribution described = Describe(std::move(values));
    by_kind[kind] = {{"ttft_p50_ms", described.p50}, {"ttft_p99_ms", described.p99}};
  }
  return by_kind;
}

Json CurveJson(const SetUpRuns& set_up, const ComparedWorkload& workload) {
  Json curve = Json::array();
  for (const RatePoint& point : set_up.points) {
    std::vector<double> ttft;
    std::vector<double> itl;
    std::vector<double> tokens;
    for (const LoadRun& run : point.runs) {
      const LoadSummary all = SummaryOf(run, workload);
      ttft.push_back(all.first_token_ms.p50);
      tokens.push_back(all.per_second(all.output_tokens));
      itl.push_back(SummaryOf(run, workload, workload.stream_kind).inter_token_ms.p99);
    }
    curve.push_back({{"request_rate", point.rate},
                     {"runs", point.runs.size()},
                     {"good_share", GoodShare(point, workload.limits)},
                     {"ttft_p50_ms", SpreadOf(ttft).median},
                     {"itl_p99_ms", SpreadOf(itl).median},
                     {"output_tokens_per_s", SpreadOf(tokens).median}});
  }
  return curve;
}

Json WorkloadJson(const WorkloadRuns& runs) {
  const ComparedWorkload& workload = runs.workload;
  Json out = {{"name", workload.name}};
  for (const SetUpRuns& set_up : runs.set_ups) {
    Json side = SideJson(FiguresOf(set_up, workload));
    side["by_kind"] = ByKindJson(set_up, workload);
    side["rates"] = CurveJson(set_up, workload);
    out[SetUpName(set_up.set_up)] = std::move(side);
  }
  const Ratios ratios = CompareSides(runs.set_ups[0], runs.set_ups[1], workload);
  out["itl_p99_ratio"] = ratios.itl_p99;
  out["itl_p99_ratio_range"] = SpreadJson(ratios.itl_p99_by_repeat);
  out["goodput_ratio"] = ratios.goodput;
  out["goodput_ratio_known"] = KnownName(ratios.goodput_known);
  out["ttft_p50_ratio"] = ratios.ttft_p50;
  out["peak_throughput_ratio"] = ratios.peak_throughput;
  const Ratios conditional = CompareSides(runs.set_ups[0], runs.set_ups[2], workload);
  out["conditional_ratios"] = {{"itl_p99", conditional.itl_p99},
                               {"goodput", conditional.goodput},
                               {"goodput_known", KnownName(conditional.goodput_known)},
                               {"ttft_p50", conditional.ttft_p50},
                               {"peak_throughput", conditional.peak_throughput}};
  out["reference_rate"] = workload.reference_rate;
  out["limits"] = {{"ttft_ms", workload.limits.first_token_ms},
                   {"itl_ms", workload.limits.inter_token_ms}};
  out["description"] = workload.description;
  for (const SetUpRuns& chunk : runs.chunks) {
    Json side = SideJson(FiguresOf(chunk, workload));
    for (const char* member : {"goodput_rps", "goodput_below_lowest_rate",
                               "goodput_at_highest_rate", "peak_output_tokens_per_s"}) {
      side.erase(member);  // these runs have one rate
    }
    side["max_batch_tokens"] = chunk.max_batch_tokens;
    out["colocated_chunks"].push_back(std::move(side));
  }
  return out;
}

Json CrossoverJson(const Crossover& crossover) {
  Json cells = Json::array();
  for (const CrossoverCell& cell : crossover.cells) {
    cells.push_back({{"prompt_tokens", cell.prompt_tokens},
                     {"output_tokens", cell.output_tokens},
                     {"running", cell.running},
                     {"colocated_s", cell.colocated_seconds},
                     {"disaggregated_s", cell.disaggregated_seconds},
                     {"predicted_colocated_s", cell.predicted_colocated_seconds},
                     {"predicted_disaggregated_s", cell.predicted_disaggregated_seconds}});
  }
  Json break_evens = Json::array();
  const auto length = [](const std::optional<int>& prompt) {
    return prompt.has_value() ? Json(*prompt) : Json();
  };
  for (const BreakEven& entry : BreakEvensOf(crossover)) {
    break_evens.push_back({{"output_tokens", entry.output_tokens},
                           {"running", entry.running},
                           {"measured_prompt_tokens", length(entry.measured)},
                           {"predicted_prompt_tokens", length(entry.predicted)}});
  }
  Json out = {{"cells", std::move(cells)}, {"break_even", std::move(break_evens)}};
  const std::optional<double> error = CrossoverError(crossover);
  out["prediction_error_median"] = error.has_value() ? Json(*error) : Json();
  out["rates"] = Json::parse(FormatRates(crossover.rates));
  return out;
}

bool IsTheSame(double ratio) {
  return ratio > 0.95 && ratio < 1.05;
}

std::string Times(double ratio, const char* better, const char* worse) {
  if (IsTheSame(ratio)) {
    return "the same";
  }
  return ratio >= 1 ? absl::StrFormat("%.1fx %s", ratio, better)
                    : absl::StrFormat("%.1fx %s", Over(1, ratio), worse);
}

// "2.1x higher", "at least 2.1x higher", "the same or lower".
std::string GoodputInWords(const Ratios& ratios) {
  const std::string times = Times(ratios.goodput, "higher", "lower");
  const bool at_least = ratios.goodput_known == Known::kAtLeast;
  if (ratios.goodput_known == Known::kExactly) {
    return times;
  }
  if (ratios.goodput_known == Known::kNothing) {
    return "not told apart by these rates";
  }
  if (IsTheSame(ratios.goodput)) {
    return times + (at_least ? " or higher" : " or lower");
  }
  // At least 0.5 times as high is at most 2 times lower.
  return absl::StrCat(at_least == (ratios.goodput > 1) ? "at least " : "at most ", times);
}

// "p99 between tokens 4.6x shorter, goodput 2.1x higher, ..."
std::string InWords(const Ratios& ratios) {
  return absl::StrCat("p99 between tokens ", Times(ratios.itl_p99, "shorter", "longer"),
                      ", goodput ", GoodputInWords(ratios), ", median first token ",
                      Times(ratios.ttft_p50, "sooner", "later"), ", most tokens a second ",
                      Times(ratios.peak_throughput, "higher", "lower"));
}

std::string Clause(const WorkloadRuns& runs, const Ratios& split) {
  const Ratios conditional = CompareSides(runs.set_ups[0], runs.set_ups[2], runs.workload);
  return absl::StrCat(runs.workload.name, " traffic (", InWords(split),
                      "; where the router's rule decides: ", InWords(conditional), ")");
}

// Of the requests that came at the reference rate, those with at least so long a prompt.
double ShareFrom(int prompt_tokens, const WorkloadRuns& runs) {
  double all = 0;
  double long_ones = 0;
  for (const SetUpRuns& set_up : runs.set_ups) {
    const RatePoint* point = PointAt(set_up, runs.workload.reference_rate);
    for (const LoadRun& run : point == nullptr ? std::vector<LoadRun>() : point->runs) {
      for (const RequestRecord& record : run.records) {
        all += 1;
        long_ones += record.prompt_tokens >= prompt_tokens ? 1 : 0;
      }
    }
  }
  return Over(long_ones, all);
}

void AppendSide(const std::string& name, const SideFigures& side, std::string& out) {
  absl::StrAppendFormat(&out, "  %-16s %8.0f %8.0f %8.1f %8.1f (%.0f-%.0f) %9.1f %8.2f%s\n", name,
                        side.ttft_p50_ms.median, side.ttft_p99_ms.median, side.itl_p50_ms.median,
                        side.itl_p99_ms.median, side.itl_p99_ms.least, side.itl_p99_ms.most,
                        side.output_tokens_per_s.median, side.goodput.requests_per_second,
                        side.goodput.at_highest     ? " or more"
                        : side.goodput.below_lowest ? " or less"
                                                    : "");
}

}  // namespace

double GoodShare(const RatePoint& point, const ServiceLimits& limits) {
  double good = 0;
  double all = 0;
  for (const LoadRun& run : point.runs) {
    const LoadSummary summary = Summarize(run, {.limits = limits});
    good += static_cast<double>(summary.good);
    all += static_cast<double>(summary.requests);
  }
  return Over(good, all);
}

SideFigures FiguresOf(const SetUpRuns& set_up, const ComparedWorkload& workload) {
  std::map<std::string, std::vector<double>> values;
  SideFigures side{.goodput = GoodputOf(set_up, workload)};
  for (const RatePoint& point : set_up.points) {
    for (const LoadRun& run : point.runs) {
      const LoadSummary all = SummaryOf(run, workload);
      const double tokens = all.per_second(all.output_tokens);
      side.peak_output_tokens_per_s = std::max(side.peak_output_tokens_per_s, tokens);
      if (point.rate != workload.reference_rate) {
        continue;
      }
      const LoadSummary streams = SummaryOf(run, workload, workload.stream_kind);
      values["ttft_p50"].push_back(all.first_token_ms.p50);
      values["ttft_p99"].push_back(all.first_token_ms.p99);
      values["itl_p50"].push_back(streams.inter_token_ms.p50);
      values["itl_p99"].push_back(streams.inter_token_ms.p99);
      values["tokens"].push_back(tokens);
      values["failed"].push_back(
          Over(static_cast<double>(all.failed), static_cast<double>(all.requests)));
    }
  }
  side.ttft_p50_ms = SpreadOf(values["ttft_p50"]);
  side.ttft_p99_ms = SpreadOf(values["ttft_p99"]);
  side.itl_p50_ms = SpreadOf(values["itl_p50"]);
  side.itl_p99_ms = SpreadOf(values["itl_p99"]);
  side.output_tokens_per_s = SpreadOf(values["tokens"]);
  side.failed_share = SpreadOf(values["failed"]).median;
  return side;
}

Ratios CompareSides(const SetUpRuns& colocated,
                    const SetUpRuns& other,
                    const ComparedWorkload& workload) {
  const SideFigures a = FiguresOf(colocated, workload);
  const SideFigures b = FiguresOf(other, workload);
  Ratios ratios{.itl_p99 = Over(a.itl_p99_ms.median, b.itl_p99_ms.median),
                .goodput = Over(b.goodput.requests_per_second, a.goodput.requests_per_second),
                .goodput_known = KnownOf(b.goodput, a.goodput),
                .ttft_p50 = Over(a.ttft_p50_ms.median, b.ttft_p50_ms.median),
                .peak_throughput = Over(b.peak_output_tokens_per_s, a.peak_output_tokens_per_s)};
  const RatePoint* at_a = PointAt(colocated, workload.reference_rate);
  const RatePoint* at_b = PointAt(other, workload.reference_rate);
  std::vector<double> by_repeat;
  for (std::size_t i = 0;
       at_a != nullptr && at_b != nullptr && i < std::min(at_a->runs.size(), at_b->runs.size());
       ++i) {
    by_repeat.push_back(
        Over(SummaryOf(at_a->runs[i], workload, workload.stream_kind).inter_token_ms.p99,
             SummaryOf(at_b->runs[i], workload, workload.stream_kind).inter_token_ms.p99));
  }
  ratios.itl_p99_by_repeat = SpreadOf(by_repeat);
  return ratios;
}

std::string Verdict(const CompareResult& result) {
  std::vector<std::string> pays;
  std::vector<std::string> costs;
  std::vector<std::string> open;  // the bounds that are known allow either
  for (const WorkloadRuns& runs : result.workloads) {
    const Ratios ratios = CompareSides(runs.set_ups[0], runs.set_ups[1], runs.workload);
    const bool is_higher = ratios.goodput > 1;
    const bool is_open = ratios.goodput_known == Known::kNothing ||
                         (ratios.goodput_known == (is_higher ? Known::kAtMost : Known::kAtLeast));
    (is_open ? open : is_higher ? pays : costs).push_back(Clause(runs, ratios));
  }
  std::vector<std::string> parts;
  const auto add = [&parts](const char* what, const std::vector<std::string>& clauses) {
    if (!clauses.empty()) {
      parts.push_back(what + absl::StrJoin(clauses, " and "));
    }
  };
  add("splitting pays for ", pays);
  add(pays.empty() ? "splitting does not pay for " : "it does not for ", costs);
  add("whether splitting pays these rates do not tell for ", open);
  return absl::StrCat(
      "On this machine, with one core for prefill and one for decode against two that do both, ",
      absl::StrJoin(parts, ", and "), ".");
}

ChatFigures FiguresOf(const RunningChat& chat) {
  const auto median = [](const std::vector<LoadRun>& runs, double Distribution::*statistic) {
    std::vector<double> values;
    for (const LoadRun& run : runs) {
      values.push_back(Summarize(run, {.kind = "chat"}).inter_token_ms.*statistic);
    }
    return SpreadOf(values).median;
  };
  return {.undisturbed_p99_ms = median(chat.undisturbed, &Distribution::p99),
          .disaggregated_p99_ms = median(chat.disaggregated, &Distribution::p99),
          .disaggregated_stall_ms = median(chat.disaggregated, &Distribution::max),
          .colocated_p99_ms = median(chat.colocated, &Distribution::p99),
          .colocated_stall_ms = median(chat.colocated, &Distribution::max)};
}

std::optional<double> CrossoverError(const Crossover& crossover) {
  std::vector<double> errors;
  for (const CrossoverCell& cell : crossover.cells) {
    errors.push_back(std::abs(cell.predicted_colocated_seconds / cell.colocated_seconds - 1));
    errors.push_back(
        std::abs(cell.predicted_disaggregated_seconds / cell.disaggregated_seconds - 1));
  }
  return errors.empty() ? std::nullopt : std::optional(SpreadOf(errors).median);
}

std::vector<BreakEven> BreakEvensOf(const Crossover& crossover) {
  std::vector<BreakEven> found;
  const auto note = [](bool gains, int prompt, std::optional<int>& least) {
    if (!gains) {
      least.reset();
    } else if (!least.has_value()) {
      least = prompt;
    }
  };
  for (const CrossoverCell& cell : crossover.cells) {  // prompts rise
    auto entry = std::find_if(found.begin(), found.end(), [&cell](const BreakEven& other) {
      return other.output_tokens == cell.output_tokens && other.running == cell.running;
    });
    if (entry == found.end()) {
      entry = found.insert(entry, {.output_tokens = cell.output_tokens, .running = cell.running});
    }
    note(cell.disaggregated_seconds < cell.colocated_seconds, cell.prompt_tokens, entry->measured);
    note(cell.predicted_disaggregated_seconds < cell.predicted_colocated_seconds,
         cell.prompt_tokens, entry->predicted);
  }
  return found;
}

std::vector<std::string> SidesOfCrossover(const CompareResult& result) {
  int longest = 0;
  for (const CrossoverCell& cell : result.crossover.cells) {
    longest = std::max(longest, cell.prompt_tokens);
  }
  const auto begin = [](int running, const std::string& outputs) {
    return absl::StrCat("Beside ", running, " running streams, to the end of ", outputs,
                        " new tokens, splitting is quicker for the request ");
  };
  std::vector<std::string> sentences;
  std::map<int, std::vector<int>> never;  // output lengths, by the number of running streams
  for (const BreakEven& entry : BreakEvensOf(result.crossover)) {
    if (!entry.measured.has_value()) {
      never[entry.running].push_back(entry.output_tokens);
      continue;
    }
    std::vector<std::string> shares;
    for (const WorkloadRuns& runs : result.workloads) {
      shares.push_back(absl::StrFormat("%.0f%% of the %s prompts",
                                       100 * ShareFrom(*entry.measured, runs), runs.workload.name));
    }
    sentences.push_back(absl::StrCat(
        begin(entry.running, absl::StrCat(entry.output_tokens)), "from ", *entry.measured,
        " prompt tokens on. As long: ", absl::StrJoin(shares, ", "), "."));
  }
  for (const auto& [running, outputs] : never) {
    sentences.push_back(absl::StrCat(begin(running, absl::StrJoin(outputs, ", ")),
                                     "from no prompt length on, of those up to ", longest,
                                     " tokens: what it gains, it gains for others."));
  }
  return sentences;
}

Json CompareJson(const CompareResult& result) {
  Json out = {{"verdict", Verdict(result)}, {"workloads", Json::array()}};
  for (const WorkloadRuns& runs : result.workloads) {
    out["workloads"].push_back(WorkloadJson(runs));
  }
  const ChatFigures chat = FiguresOf(result.chat);
  out["running_chat"] = {
      {"undisturbed_itl_p99_ms", chat.undisturbed_p99_ms},
      {"disaggregated_itl_p99_ms", chat.disaggregated_p99_ms},
      {"disaggregated_longest_stall_ms", chat.disaggregated_stall_ms},
      {"disaggregated_over_undisturbed", Over(chat.disaggregated_p99_ms, chat.undisturbed_p99_ms)},
      {"colocated_itl_p99_ms", chat.colocated_p99_ms},
      {"colocated_longest_stall_ms", chat.colocated_stall_ms}};
  out["crossover"] = CrossoverJson(result.crossover);
  out["machine"] = result.machine;
  out["cores"] = result.cores;
  out["model"] = result.model;
  out["transport"] = result.transport;
  out["shared_cpu_cores"] = result.shared_cpu_cores;
  out["quick"] = result.quick;
  out["date"] = result.date;
  out["seconds"] = result.seconds;
  return out;
}

std::string CompareTable(const CompareResult& result) {
  std::string out = absl::StrCat(result.machine, "; ", result.cores, ". Model ", result.model,
                                 ", blocks by ", result.transport, ".\n");
  for (const WorkloadRuns& runs : result.workloads) {
    const ComparedWorkload& workload = runs.workload;
    absl::StrAppendFormat(
        &out,
        "\n%s at %g requests/s: %s\n  limits: first token %.0f ms, 95%% of a request's gaps %.0f "
        "ms\n  %-16s %8s %8s %8s %17s %9s %8s\n",
        workload.name, workload.reference_rate, workload.description,
        workload.limits.first_token_ms, workload.limits.inter_token_ms, "", "ttft p50", "ttft p99",
        "itl p50", "itl p99 (range)", "tokens/s", "goodput");
    for (const SetUpRuns& set_up : runs.set_ups) {
      AppendSide(SetUpName(set_up.set_up), FiguresOf(set_up, workload), out);
    }
    for (const SetUpRuns& chunk : runs.chunks) {
      const SideFigures side = FiguresOf(chunk, workload);
      absl::StrAppendFormat(&out, "  colocated, %-5d %8.0f %8.0f %8.1f %8.1f (%.0f-%.0f) %9.1f\n",
                            chunk.max_batch_tokens, side.ttft_p50_ms.median,
                            side.ttft_p99_ms.median, side.itl_p50_ms.median, side.itl_p99_ms.median,
                            side.itl_p99_ms.least, side.itl_p99_ms.most,
                            side.output_tokens_per_s.median);
    }
  }
  const ChatFigures chat = FiguresOf(result.chat);
  absl::StrAppendFormat(
      &out,
      "\na running chat while a prompt of 2,048 tokens comes every 5 s: p99 between tokens %.1f ms "
      "(undisturbed %.1f), longest stall %.0f ms; colocated, a chat on each worker: p99 %.1f ms, "
      "longest stall %.0f ms\n",
      chat.disaggregated_p99_ms, chat.undisturbed_p99_ms, chat.disaggregated_stall_ms,
      chat.colocated_p99_ms, chat.colocated_stall_ms);
  if (const std::optional<double> error = CrossoverError(result.crossover)) {
    absl::StrAppendFormat(&out, "crossover: the planner's times are within %.0f%% (median)\n",
                          100 * *error);
  }
  for (const std::string& sentence : SidesOfCrossover(result)) {
    absl::StrAppend(&out, "  ", sentence, "\n");
  }
  absl::StrAppend(&out, "\n", Verdict(result), "\n");
  return out;
}

}  // namespace baton
