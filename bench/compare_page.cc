#include "bench/compare_page.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/compare_report.h"
#include "bench/report_page.h"

namespace baton {
namespace {

std::string Number(double value, int decimals = 1) {
  return absl::StrFormat("%.*f", decimals, value);
}

// "41.2 (40.1-44.0)"; without a range of one repeat.
std::string Cell(const Spread& spread) {
  return spread.least == spread.most
             ? Number(spread.median)
             : absl::StrCat(Number(spread.median), " (", Number(spread.least), "-",
                            Number(spread.most), ")");
}

std::string GoodputCell(const Goodput& goodput) {
  return absl::StrCat(Number(goodput.requests_per_second, 2), goodput.at_highest     ? " or more"
                                                              : goodput.below_lowest ? " or less"
                                                                                     : "");
}

std::vector<NamedRun> ReferenceRuns(const WorkloadRuns& runs, bool first_only) {
  std::vector<NamedRun> named;
  for (const SetUpRuns& set_up : runs.set_ups) {
    NamedRun& entry = named.emplace_back(NamedRun{.name = SetUpName(set_up.set_up)});
    for (const RatePoint& point : set_up.points) {
      if (point.rate == runs.workload.reference_rate) {
        for (const LoadRun& run : point.runs) {
          if (entry.runs.empty() || !first_only) {
            entry.runs.push_back(&run);
          }
        }
      }
    }
  }
  return named;
}

// A line for each set-up: the median over repeats of one number of each run, against the rate.
PlotLine Curve(const SetUpRuns& set_up,
               const std::string& name,
               const std::function<double(const LoadRun&)>& value) {
  PlotLine line{.name = name};
  for (const RatePoint& point : set_up.points) {
    std::vector<double> values;
    for (const LoadRun& run : point.runs) {
      values.push_back(value(run));
    }
    if (!values.empty()) {
      line.points.push_back({.x = point.rate, .y = Describe(std::move(values)).p50});
    }
  }
  return line;
}

void AddFirstTokenCurves(const WorkloadRuns& runs, ReportPage& page) {
  Plot plot{.title = absl::StrCat("Time to first token against rate, ", runs.workload.name),
            .x_label = "requests a second",
            .y_label = "time to first token, ms",
            .log_y = true};
  for (const SetUpRuns& set_up : runs.set_ups) {
    for (const bool tail : {false, true}) {
      plot.lines.push_back(Curve(set_up, SetUpName(set_up.set_up) + (tail ? ", p99" : ", p50"),
                                 [tail](const LoadRun& run) {
                                   const LoadSummary all = Summarize(run, {});
                                   return tail ? all.first_token_ms.p99 : all.first_token_ms.p50;
                                 }));
    }
  }
  page.Add(plot);
}

void AddGapCurves(const WorkloadRuns& runs, ReportPage& page) {
  Plot plot{.title = absl::StrCat("Time between tokens against rate, ", runs.workload.name),
            .x_label = "requests a second",
            .y_label = "p99 between tokens, ms",
            .log_y = true};
  for (const SetUpRuns& set_up : runs.set_ups) {
    plot.lines.push_back(Curve(set_up, SetUpName(set_up.set_up), [&runs](const LoadRun& run) {
      return Summarize(run, {.kind = runs.workload.stream_kind}).inter_token_ms.p99;
    }));
  }
  page.Add(plot);
}

void AddGoodputCurves(const WorkloadRuns& runs, ReportPage& page) {
  Plot plot{.title = absl::StrCat("Goodput against rate, ", runs.workload.name),
            .x_label = "requests a second",
            .y_label = "requests within both limits, % of all"};
  for (const SetUpRuns& set_up : runs.set_ups) {
    PlotLine line{.name = SetUpName(set_up.set_up)};
    for (const RatePoint& point : set_up.points) {
      line.points.push_back({.x = point.rate, .y = 100 * GoodShare(point, runs.workload.limits)});
    }
    plot.lines.push_back(std::move(line));
  }
  plot.lines.push_back({.name = "90%, what goodput asks for",
                        .points = {{.x = runs.workload.rates.front(), .y = 90},
                                   {.x = runs.workload.rates.back(), .y = 90}}});
  page.Add(plot);
}

// Another limit would give another verdict: this shows which.
void AddLimitCurves(const WorkloadRuns& runs, ReportPage& page) {
  Plot plot{.title = absl::StrFormat("If the inter-token limit were another one, %s at %g/s",
                                     runs.workload.name, runs.workload.reference_rate),
            .x_label = "limit, ms between tokens (95% of a request's gaps)",
            .y_label = "requests within both limits, % of all",
            .log_x = true,
            .marked_x = runs.workload.limits.inter_token_ms,
            .mark = "limit used"};
  for (const SetUpRuns& set_up : runs.set_ups) {
    PlotLine line{.name = SetUpName(set_up.set_up)};
    for (const RatePoint& point : set_up.points) {
      for (double limit = 20; point.rate == runs.workload.reference_rate && limit < 500;
           limit *= 1.1) {
        line.points.push_back(
            {.x = limit,
             .y = 100 * GoodShare(point, {.first_token_ms = runs.workload.limits.first_token_ms,
                                          .inter_token_ms = limit})});
      }
    }
    plot.lines.push_back(std::move(line));
  }
  page.Add(plot);
}

std::vector<std::string> SideRow(const std::string& name, const SideFigures& side, bool swept) {
  return {name,
          Cell(side.ttft_p50_ms),
          Cell(side.ttft_p99_ms),
          Cell(side.itl_p50_ms),
          Cell(side.itl_p99_ms),
          Cell(side.output_tokens_per_s),
          swept ? GoodputCell(side.goodput) : "",
          swept ? Number(side.peak_output_tokens_per_s) : ""};
}

void AddWorkload(const WorkloadRuns& runs, ReportPage& page) {
  const ComparedWorkload& workload = runs.workload;
  page.Heading(absl::StrCat("Traffic: ", workload.name));
  page.Paragraph(absl::StrFormat(
      "%s. Limits: first token within %.0f ms and 95%% of a request's gaps within %.0f ms. The "
      "table is at %g requests a second, medians of %d repeats with their range; goodput and the "
      "most tokens a second are over all rates. Gaps between tokens are those of %s.",
      workload.description, workload.limits.first_token_ms, workload.limits.inter_token_ms,
      workload.reference_rate, ReferenceRuns(runs, false)[0].runs.size(),
      workload.stream_kind.empty() ? "all requests" : "the " + workload.stream_kind + " requests"));
  std::vector<std::vector<std::string>> rows{{"", "ttft p50 ms", "ttft p99 ms", "itl p50 ms",
                                              "itl p99 ms", "tokens/s out", "goodput, requests/s",
                                              "most tokens/s out"}};
  for (const SetUpRuns& set_up : runs.set_ups) {
    rows.push_back(SideRow(SetUpName(set_up.set_up), FiguresOf(set_up, workload), true));
  }
  for (const SetUpRuns& chunk : runs.chunks) {
    rows.push_back(SideRow(absl::StrCat("colocated, chunks of ", chunk.max_batch_tokens),
                           FiguresOf(chunk, workload), false));
  }
  page.Table(rows);
  const std::vector<NamedRun> all = ReferenceRuns(runs, false);
  page.Add(FirstTokenCdf(all, ""));
  page.Add(InterTokenCdf(all, workload.stream_kind));
  AddFirstTokenCurves(runs, page);
  AddGapCurves(runs, page);
  AddGoodputCurves(runs, page);
  AddLimitCurves(runs, page);
  std::vector<NamedRun> one = ReferenceRuns(runs, true);
  one.pop_back();  // colocated and disaggregated are left: a third would hide them
  page.Add(GapTimeline(one, workload.stream_kind, workload.event_kind));
  page.Add(FirstTokenParts(all));
}

void AddChat(const CompareResult& result, ReportPage& page) {
  if (result.chat.disaggregated.empty()) {
    return;
  }
  const ChatFigures chat = FiguresOf(result.chat);
  page.Heading("A running chat");
  page.Paragraph(
      "One stream decodes while a prompt of 2,048 tokens comes every 5 seconds. Colocated, each of "
      "the two workers has such a stream, since with one alone the prompts would all go to the "
      "other worker.");
  page.Table(
      {{"", "p99 between tokens, ms", "longest stall, ms"},
       {"disaggregated, no prompts", Number(chat.undisturbed_p99_ms), ""},
       {"disaggregated", Number(chat.disaggregated_p99_ms), Number(chat.disaggregated_stall_ms)},
       {"colocated", Number(chat.colocated_p99_ms), Number(chat.colocated_stall_ms)}});
  page.Add(GapTimeline({{.name = "colocated", .runs = {&result.chat.colocated[0]}},
                        {.name = "disaggregated", .runs = {&result.chat.disaggregated[0]}}},
                       "chat", "long"));
}

// Time colocated / disaggregated: above 1, splitting is quicker.
void AddCrossoverPlot(const Crossover& crossover, int running, ReportPage& page) {
  Plot plot{
      .title = absl::StrCat("Where splitting is quicker, beside ", running, " running streams"),
      .x_label = "prompt tokens",
      .y_label = "time colocated / disaggregated (above 1: split)",
      .log_x = true};
  std::vector<int> outputs;
  for (const CrossoverCell& cell : crossover.cells) {
    if (std::find(outputs.begin(), outputs.end(), cell.output_tokens) == outputs.end()) {
      outputs.push_back(cell.output_tokens);
    }
  }
  for (const int output : outputs) {
    PlotLine measured{.name = absl::StrCat(output, " out, measured")};
    PlotLine predicted{.name = absl::StrCat(output, " out, planner")};
    for (const CrossoverCell& cell : crossover.cells) {
      if (cell.output_tokens == output && cell.running == running) {
        const auto prompt = static_cast<double>(cell.prompt_tokens);
        measured.points.push_back(
            {.x = prompt, .y = cell.colocated_seconds / cell.disaggregated_seconds});
        predicted.points.push_back(
            {.x = prompt,
             .y = cell.predicted_colocated_seconds / cell.predicted_disaggregated_seconds});
      }
    }
    plot.lines.push_back(std::move(measured));
    plot.lines.push_back(std::move(predicted));
  }
  page.Add(plot);
}

std::string Percent(double predicted, double measured) {
  return absl::StrFormat("%+.0f%%", 100 * (predicted / measured - 1));
}

void AddBreakEvens(const Crossover& crossover, ReportPage& page) {
  const auto length = [](const std::optional<int>& prompt) {
    return prompt.has_value() ? absl::StrCat("from ", *prompt, " tokens") : std::string("never");
  };
  std::vector<std::vector<std::string>> rows{
      {"output", "running", "splitting is quicker, measured", "planner"}};
  for (const BreakEven& entry : BreakEvensOf(crossover)) {
    rows.push_back({absl::StrCat(entry.output_tokens), absl::StrCat(entry.running),
                    length(entry.measured), length(entry.predicted)});
  }
  page.Paragraph(
      "The least of these prompt lengths from which on splitting is quicker for the request "
      "itself; "
      "what it spares the running streams is not counted here.");
  page.Table(rows);
}

void AddCrossover(const CompareResult& result, ReportPage& page) {
  const Crossover& crossover = result.crossover;
  const std::optional<double> error = CrossoverError(crossover);
  if (!error.has_value()) {
    return;
  }
  page.Heading("Crossover by prompt and output length");
  page.Paragraph(absl::StrFormat(
      "Time from the arrival of a request to its last token, by either path on the same decode "
      "worker, beside streams that it runs meanwhile. The planner's prediction is made from rates "
      "of these workers when idle; its times are off by %.0f%% at the median.",
      100 * *error));
  std::vector<std::vector<std::string>> rows{{"prompt", "output", "running", "colocated ms",
                                              "disaggregated ms", "ratio", "planner's ratio",
                                              "error colocated", "error disaggregated"}};
  std::vector<int> running;
  for (const CrossoverCell& cell : crossover.cells) {
    rows.push_back(
        {absl::StrCat(cell.prompt_tokens), absl::StrCat(cell.output_tokens),
         absl::StrCat(cell.running), Number(1000 * cell.colocated_seconds, 0),
         Number(1000 * cell.disaggregated_seconds, 0),
         Number(cell.colocated_seconds / cell.disaggregated_seconds, 2),
         Number(cell.predicted_colocated_seconds / cell.predicted_disaggregated_seconds, 2),
         Percent(cell.predicted_colocated_seconds, cell.colocated_seconds),
         Percent(cell.predicted_disaggregated_seconds, cell.disaggregated_seconds)});
    if (std::find(running.begin(), running.end(), cell.running) == running.end()) {
      running.push_back(cell.running);
    }
  }
  page.Table(rows);
  AddBreakEvens(crossover, page);
  page.Paragraph(absl::StrJoin(SidesOfCrossover(result), " "));
  for (const int streams : running) {
    AddCrossoverPlot(crossover, streams, page);
  }
}

}  // namespace

std::string ComparePage(const CompareResult& result) {
  ReportPage page("Does splitting prefill from decode pay?");
  page.Verdict(Verdict(result));
  page.Paragraph(
      absl::StrFormat("%s; %s (together %.3f of a core on average). Model %s, one thread a worker, "
                      "KV blocks by %s. "
                      "%s UTC, %.0f seconds%s.",
                      result.machine, result.cores, result.shared_cpu_cores, result.model,
                      result.transport, result.date, result.seconds,
                      result.quick ? "; a quick run, whose numbers repeat only roughly" : ""));
  page.Paragraph(
      "Colocated: two decode workers, each prefills its own prompts. Disaggregated: a prefill and "
      "a "
      "decode worker, every request goes through both. Conditional: the same two, and the router "
      "decides by its default rule. Requests are sent at their times whether or not earlier ones "
      "were answered, the same times for every set-up, and latencies count from the time a request "
      "was due. Goodput is the highest rate at which 90% of the requests keep both limits.");
  for (const WorkloadRuns& runs : result.workloads) {
    AddWorkload(runs, page);
  }
  AddChat(result, page);
  AddCrossover(result, page);
  return page.Finish();
}

}  // namespace baton
