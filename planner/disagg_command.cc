#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "planner/break_even.h"
#include "planner/command_parts.h"
#include "planner/disaggregation.h"
#include "planner/field_check.h"

namespace baton {
namespace {

constexpr int kCourseLayers = 80;

Table CoursePaths(const CourseRequest& request) {
  Table table{.key = "paths",
              .heading = absl::StrCat("One request of ", request.prompt_tokens, " prompt and ",
                                      request.output_tokens, " output tokens"),
              .columns = {{"path", "path"},
                          {"prefill_ms", "prefill, ms"},
                          {"transfer_ms", "transfer, ms"},
                          {"first_token_ms", "first token, ms"},
                          {"total_ms", "total, ms"},
                          {"gain_ms", "gain, ms"},
                          {"ratio", "ratio"},
                          {"exposed_layerwise_ms", "left when sent layer by layer, ms"}}};
  const double prefill = PrefillMs(request.prompt_tokens);
  const double whole = MsColocated(request);
  table.rows.push_back(
      {"colocated", Num(prefill), Num(0), Num(prefill), Num(whole), Num(0), Num(1), Num(0)});
  const std::pair<const char*, double> links[] = {
      {"disaggregated, RDMA 100 GB/s", kCourseRdmaBytesPerSecond},
      {"disaggregated, TCP 10 GB/s", kCourseTcpBytesPerSecond}};
  for (const auto& [name, bytes_per_second] : links) {
    const double transfer = KvTransferMs(request.prompt_tokens, bytes_per_second);
    const double split = MsDisaggregated(request, bytes_per_second);
    table.rows.push_back({name, Num(prefill), Num(transfer), Num(prefill + transfer), Num(split),
                          Num(whole - split), Num(whole / split, 3),
                          Num(ExposedLayerwiseMs(prefill, transfer, kCourseLayers))});
  }
  return table;
}

Table Constants() {
  const double real = KvBytesPerToken(80, 8, 128, 1);
  return {.key = "constants",
          .heading = "What the constants mean, for a model of 70e9 parameters at one byte each",
          .columns = {{"constant", "constant"},
                      {"course", "course"},
                      {"check", "check"},
                      {"meaning", "the check is"}},
          .rows = {{"KV bytes a token", Num(kCourseKvBytesPerToken), Num(real),
                    "80 layers, 8 KV heads of 128, keys and values"},
                   {"4,096 tokens of KV, MB", Num(4096 * kCourseKvBytesPerToken / 1e6),
                    Num(4096 * real / 1e6, 1), "the same"},
                   {"prefill tokens/s", Num(kCoursePrefillTokensPerMs * 1000),
                    Num(2000e12 / DenseFlopsPerSecond(70e9, 1), 0),
                    "what 2000 TFLOP/s, the prose's GPU, allow"},
                   {"decode tokens/s, colocated", Num(kCourseColocatedDecodeTokensPerMs * 1000),
                    Num(WeightReadBoundTokensPerSecond(70e9, 3e12), 1),
                    "what reading the weights at 3 TB/s allows"}}};
}

std::string FirstColocated(const DisaggOptions& options, double bytes_per_second) {
  return FormatNumber({FirstColocatedPromptTokens(options.output_tokens, bytes_per_second), 0});
}

Report PaperReport(const DisaggOptions& options) {
  const CourseRequest request = {options.prompt_tokens, options.output_tokens};
  Report report{.command = "disagg", .mode = "paper"};
  report.tables = {CoursePaths(request), Constants()};
  report.claim =
      "contradicts \"colocate below 512 tokens\": this model has no threshold of prompt length, "
      "its "
      "whole gain is the faster decode constant";
  report.notes = {absl::StrCat("with this output, colocated is quicker from ",
                               FirstColocated(options, kCourseRdmaBytesPerSecond),
                               " prompt tokens on over RDMA, from ",
                               FirstColocated(options, kCourseTcpBytesPerSecond), " over TCP"),
                  "\"20 to 80 ms for 4K tokens\" is prose: these constants give 5.12 and 51.2 ms"};
  report.plot = {.title = "Course model: one request",
                 .x_label = "prompt, tokens",
                 .y_label = "first token, ms",
                 .log_x = true,
                 .log_y = true,
                 .lines = {{"colocated", {}}, {"RDMA 100 GB/s", {}}, {"TCP 10 GB/s", {}}}};
  for (const double tokens : {256, 512, 1024, 2048, 4096, 8192, 16384, 32768}) {
    const double prefill = PrefillMs(tokens);
    report.plot.lines[0].points.push_back({tokens, prefill});
    report.plot.lines[1].points.push_back(
        {tokens, prefill + KvTransferMs(tokens, kCourseRdmaBytesPerSecond)});
    report.plot.lines[2].points.push_back(
        {tokens, prefill + KvTransferMs(tokens, kCourseTcpBytesPerSecond)});
  }
  return report;
}

std::vector<Cell> PathRow(const std::string& path,
                          double running,
                          const FirstTokenTime& time,
                          double decode_seconds) {
  return {path,
          Num(running),
          Num(time.prefill_seconds * 1000, 2),
          Num(time.shared_seconds * 1000, 2),
          Num(time.fixed_seconds * 1000, 2),
          Num(time.exposed_seconds * 1000, 2),
          Num(time.first_token_seconds() * 1000, 2),
          Num(time.stall_seconds * 1000, 2),
          Num((time.decoding_seconds() + decode_seconds) * 1000, 2)};
}

// The request beside 0 to 16 streams that run on the decode worker; the prefill worker is idle.
Table MeasuredPaths(const DisaggOptions& options,
                    const CostModel& model,
                    const TransportRate& transport) {
  Table table{
      .key = "paths",
      .heading = absl::StrCat("One request of ", options.prompt_tokens, " prompt and ",
                              options.output_tokens, " output tokens, over ", transport.name),
      .columns = {{"path", "path"},
                  {"running", "running"},
                  {"prefill_ms", "prefill, ms"},
                  {"shared_ms", "shared steps, ms"},
                  {"fixed_ms", "fixed, ms"},
                  {"exposed_ms", "exposed, ms"},
                  {"first_token_ms", "first token, ms"},
                  {"stall_ms", "others stall, ms"},
                  {"total_ms", "total, ms"}}};
  const PromptTokens prompt{options.prompt_tokens};
  const WorkerLoad idle;
  for (const int running : kRunningStreams) {
    const WorkerLoad load{.running_sequences = double{1} * running,
                          .depth_tokens = options.depth_tokens};
    const double depth =
        (running * options.depth_tokens + options.prompt_tokens + options.output_tokens / 2) /
        (running + 1);
    const double decode_seconds =
        std::max(0.0, options.output_tokens - 1) * model.DecodeStepSeconds(running + 1, depth);
    table.rows.push_back(
        PathRow("colocated", running, model.PredictColocated(prompt, load), decode_seconds));
    table.rows.push_back(PathRow("disaggregated", running,
                                 PredictDisaggregated({model, idle, transport}, prompt, prompt),
                                 decode_seconds));
  }
  return table;
}

Plot MeasuredPlot(const DisaggOptions& options,
                  const CostModel& model,
                  const TransportRate& transport) {
  Plot plot{.title = absl::StrCat("Measured rates: time until decoding goes on, ", transport.name),
            .x_label = "prompt, tokens",
            .y_label = "seconds",
            .log_x = true,
            .log_y = true,
            .lines = {{"colocated, idle", {}},
                      {"colocated, 4 running", {}},
                      {"colocated, 16 running", {}},
                      {"disaggregated", {}}},
            .marked_x = 512,
            .mark = "512"};
  const WorkerLoad idle;
  for (double tokens = 16; tokens <= 8192; tokens *= 2) {
    const PromptTokens prompt{tokens};
    const double running[] = {0, 4, 16};
    for (std::size_t i = 0; i < 3; ++i) {
      const WorkerLoad load{.running_sequences = running[i], .depth_tokens = options.depth_tokens};
      plot.lines[i].points.push_back(
          {tokens, model.PredictColocated(prompt, load).decoding_seconds()});
    }
    plot.lines[3].points.push_back(
        {tokens,
         PredictDisaggregated({model, idle, transport}, prompt, prompt).decoding_seconds()});
  }
  return plot;
}

}  // namespace

absl::StatusOr<Report> PlanDisagg(const DisaggOptions& options, const Measured& measured) {
  RETURN_IF_ERROR(CheckRange("prompt", options.prompt_tokens, 1, 1e9));
  RETURN_IF_ERROR(CheckRange("output", options.output_tokens, 0, 1e9));
  RETURN_IF_ERROR(CheckRange("depth", options.depth_tokens, 0, 1e9));
  if (measured.model == nullptr) {
    return PaperReport(options);
  }
  ASSIGN_OR_RETURN(const TransportRate* transport, ChooseTransport(measured));
  Report report{.command = "disagg", .mode = "measured"};
  report.tables.push_back(MeasuredPaths(options, *measured.model, *transport));
  AddErrors(*measured.model, report);
  report.claim =
      "contradicts a gain from splitting alone: with one kind of worker a split costs its "
      "transfer, "
      "and pays only by what running streams would lose";
  report.notes.push_back(
      "the first token does not wait for the blocks, the second does; both workers are of one "
      "kind");
  report.plot = MeasuredPlot(options, *measured.model, *transport);
  return report;
}

}  // namespace baton
