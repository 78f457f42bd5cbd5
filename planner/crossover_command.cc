#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "planner/break_even.h"
#include "planner/command_parts.h"
#include "planner/disaggregation.h"
#include "planner/field_check.h"
#include "planner/hogwild.h"
#include "planner/offload.h"
#include "planner/regions.h"

namespace baton {
namespace {

constexpr int kMostTokens = 32'768;

Table CourseCrossovers(const CrossoverOptions& options) {
  const HogwildTask task;
  const auto first = [&options](double bytes_per_second) {
    return Num(FirstColocatedPromptTokens(options.output_tokens, bytes_per_second), 0);
  };
  return {
      .key = "crossovers",
      .heading = "Where the course's models change sides",
      .columns = {{"question", "question"}, {"value", "value"}, {"unit", "unit"}},
      .rows = {
          {"a prompt length from which a split pays", Cell(), "there is none"},
          {"colocation wins above, RDMA",
           Num(ColocationBreakEvenRatio(kCourseRdmaBytesPerSecond), 1),
           "prompt tokens for each output token"},
          {"colocation wins above, TCP", Num(ColocationBreakEvenRatio(kCourseTcpBytesPerSecond), 1),
           "prompt tokens for each output token"},
          {"with this output, RDMA: from", first(kCourseRdmaBytesPerSecond), "prompt tokens"},
          {"with this output, TCP: from", first(kCourseTcpBytesPerSecond), "prompt tokens"},
          {"streaming hides a transfer above",
           Num(HidingBytesPerSecond(kCourseKvBytesPerToken, kCoursePrefillTokensPerMs * 1000) /
               1e9),
           "GB/s"},
          {"loading KV beats computing it above",
           Num(OffloadBytesPerSecond(OffloadBreakEvenMsPerBlock()) / 1e9), "GB/s"},
          {"cross-region pays above, a round trip of 75 ms",
           Num(CrossRegionBreakEvenTokens(75, true), 1), "prompt tokens"},
          {"four workers on one answer pay above", Num(BreakEvenSerialSteps(task, 4), 1),
           "steps, p = 0.7, c = 200"},
          {"best number of workers", Num(BestWorkers(task)), "N*, T = 10000, p = 0.7, c = 200"}}};
}

Report PaperReport(const CrossoverOptions& options) {
  Report report{.command = "crossover", .mode = "paper"};
  report.tables.push_back(CourseCrossovers(options));
  const CourseRequest request = {options.prompt_tokens, options.output_tokens};
  const double gain = MsColocated(request) - MsDisaggregated(request, kCourseRdmaBytesPerSecond);
  report.claim =
      "contradicts \"colocate below 512 tokens\": the model has no threshold of prompt length at "
      "all, "
      "colocation wins only far above it";
  report.notes.push_back(
      absl::StrCat("at ", options.prompt_tokens, " prompt and ", options.output_tokens,
                   " output tokens a split over RDMA gains ", FormatNumber({gain, 4}), " ms"));
  report.plot = {.title = "Course model: gain of a split",
                 .x_label = "prompt, tokens",
                 .y_label = "colocated minus disaggregated, ms",
                 .log_x = true,
                 .lines = {{"RDMA 100 GB/s", {}}, {"TCP 10 GB/s", {}}},
                 .marked_x = options.prompt_tokens,
                 .mark = absl::StrCat(options.prompt_tokens)};
  for (double tokens = 16; tokens <= 1 << 20; tokens *= 2) {
    const CourseRequest at = {tokens, options.output_tokens};
    report.plot.lines[0].points.push_back(
        {tokens, MsColocated(at) - MsDisaggregated(at, kCourseRdmaBytesPerSecond)});
    report.plot.lines[1].points.push_back(
        {tokens, MsColocated(at) - MsDisaggregated(at, kCourseTcpBytesPerSecond)});
  }
  return report;
}

SplitQuestion Question(const CrossoverOptions& options,
                       const CostModel& model,
                       const TransportRate& transport,
                       int running) {
  return {.model = model,
          .transport = transport,
          .decode_load = {.running_sequences = double{1} * running,
                          .depth_tokens = options.depth_tokens},
          .prefill_load = {.queued_prefill_tokens = options.prefill_queue_tokens}};
}

// For each transport and number of running streams: from which length a split pays, and what it
// gives at the length in question.
Table SplitTable(const CrossoverOptions& options, const CostModel& model) {
  Table table{
      .key = "split",
      .heading = absl::StrCat("From which prompt length a split pays, and what it gains at ",
                              options.prompt_tokens, " tokens"),
      .columns = {{"transport", "transport"},
                  {"running", "running"},
                  {"tokens", "for the request, from"},
                  {"tokens_with_stalls", "with what others lose, from"},
                  {"gain_ms", "gain, ms"},
                  {"gain_with_stalls_ms", "gain with what others lose, ms"}}};
  for (const TransportRate& transport : model.rates().transports) {
    for (const int running : kRunningStreams) {
      if (running >= model.rates().max_batch_tokens) {
        continue;
      }
      SplitQuestion question = Question(options, model, transport, running);
      const std::optional<int> alone = SplitBreakEvenTokens(question, kMostTokens);
      const double gain = SplitGainSeconds(question, options.prompt_tokens);
      question.count_stalls = true;
      const std::optional<int> all = SplitBreakEvenTokens(question, kMostTokens);
      table.rows.push_back({transport.name, Num(running), Length(alone), Length(all),
                            Num(gain * 1000, 2),
                            Num(SplitGainSeconds(question, options.prompt_tokens) * 1000, 2)});
    }
  }
  return table;
}

absl::StatusOr<Table> OtherCrossovers(const CrossoverOptions& options,
                                      const CostModel& model,
                                      const TransportRate& transport) {
  const HogwildTask task;
  const std::optional<double> load =
      LoadBreakEvenBytesPerSecond(model, options.prompt_tokens, transport.fixed_seconds);
  return Table{
      .key = "crossovers",
      .heading = "Other crossovers by measured rates",
      .columns = {{"question", "question"}, {"value", "value"}, {"unit", "unit"}},
      .rows = {
          {"streaming hides a transfer above",
           Num(HidingBytesPerSecond(model, options.prompt_tokens) / 1e9), "GB/s"},
          {absl::StrCat("loading KV of this prompt pays above, fixed cost of ", transport.name),
           load.has_value() ? Num(*load / 1e9) : Cell(), "GB/s"},
          {absl::StrCat("a load over ", transport.name, " pays from"),
           Length(LoadBreakEvenTokens(model, transport)), "prompt tokens"},
          {absl::StrCat("cross-region pays from, a round trip of ", options.round_trip_ms, " ms"),
           Length(
               RegionBreakEvenTokens(model, options.round_trip_ms / 1000, options.uncached_tokens)),
           "prompt tokens"},
          {"best number of workers on one answer",
           Num(BestMeasuredWorkers(model, task, options.depth_tokens)),
           "N*, T = 10000, p = 0.7, c = 200"}}};
}

Plot GainPlot(const CrossoverOptions& options,
              const CostModel& model,
              const TransportRate& transport) {
  Plot plot{.title = absl::StrCat("Measured rates: gain of a split over ", transport.name),
            .x_label = "prompt, tokens",
            .y_label = "colocated minus disaggregated, ms",
            .log_x = true,
            .marked_x = options.prompt_tokens,
            .mark = absl::StrCat(options.prompt_tokens)};
  for (const int running : {0, 1, 4, 16}) {
    PlotLine& line = plot.lines.emplace_back(PlotLine{absl::StrCat(running, " running"), {}});
    for (double tokens = 16; tokens <= 8192; tokens *= 2) {
      line.points.push_back(
          {tokens, SplitGainSeconds(Question(options, model, transport, running), tokens) * 1000});
    }
  }
  return plot;
}

// The answer in one line, for the transport in question and four running streams.
std::string Answer(const CrossoverOptions& options,
                   const CostModel& model,
                   const TransportRate& transport) {
  const auto text = [&](int running) {
    const auto tokens =
        SplitBreakEvenTokens(Question(options, model, transport, running), kMostTokens);
    return tokens.has_value()
               ? absl::StrCat("pays from ", *tokens, *tokens == 1 ? " token" : " tokens")
               : std::string("never pays");
  };
  return absl::StrCat("\"colocate below 512 tokens\": measured here, over ", transport.name,
                      ", a split ", text(0), " beside an idle decode worker, ", text(1),
                      " beside 1 stream, ", text(4), " beside 4, ", text(16), " beside 16");
}

}  // namespace

absl::StatusOr<Report> PlanCrossover(const CrossoverOptions& options, const Measured& measured) {
  RETURN_IF_ERROR(CheckRange("prompt", options.prompt_tokens, 1, kMostTokens));
  RETURN_IF_ERROR(CheckRange("output", options.output_tokens, 0, 1e9));
  RETURN_IF_ERROR(CheckRange("depth", options.depth_tokens, 0, 1e9));
  RETURN_IF_ERROR(CheckRange("prefill-queue", options.prefill_queue_tokens, 0, 1e9));
  RETURN_IF_ERROR(CheckRange("round-trip-ms", options.round_trip_ms, 0, 1e6));
  RETURN_IF_ERROR(CheckRange("uncached", options.uncached_tokens, 0, 1e9));
  if (measured.model == nullptr) {
    return PaperReport(options);
  }
  ASSIGN_OR_RETURN(const TransportRate* transport, ChooseTransport(measured));
  const CostModel& model = *measured.model;
  Report report{.command = "crossover", .mode = "measured"};
  report.tables.push_back(SplitTable(options, model));
  ASSIGN_OR_RETURN(Table others, OtherCrossovers(options, model, *transport));
  report.tables.push_back(std::move(others));
  AddErrors(model, report);
  report.claim = Answer(options, model, *transport);
  report.notes.push_back(
      "a split is compared by the time until decoding goes on; the prefill worker is of the same "
      "kind and has --prefill-queue tokens to compute first");
  report.plot = GainPlot(options, model, *transport);
  return report;
}

}  // namespace baton
