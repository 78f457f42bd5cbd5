#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "planner/command_parts.h"
#include "planner/disaggregation.h"
#include "planner/field_check.h"
#include "planner/pool_size.h"

namespace baton {
namespace {

constexpr double kRateSteps[] = {0.125, 0.25, 0.5, 1, 2, 4, 8};

absl::Status Validate(const SizeOptions& options) {
  RETURN_IF_ERROR(CheckPositive("rate", options.requests_per_second, 1e6));
  RETURN_IF_ERROR(CheckRange("prompt", options.prompt_tokens, 1, 1e7));
  RETURN_IF_ERROR(CheckRange("output", options.output_tokens, 1, 1e7));
  RETURN_IF_ERROR(CheckPositive("utilisation", options.most_utilisation, 0.99));
  RETURN_IF_ERROR(CheckPositive("gpu-bytes", options.gpu_bytes, 1e18));
  RETURN_IF_ERROR(CheckPositive("gpu-bandwidth", options.gpu_bytes_per_second, 1e18));
  return CheckRange("weight-bytes", options.weight_bytes, 0, 1e18);
}

CoursePool MakeCoursePool(const SizeOptions& options, double requests_per_second) {
  return {.requests_per_second = requests_per_second,
          .prompt_tokens = options.prompt_tokens,
          .output_tokens = options.output_tokens,
          .gpu_bytes = options.gpu_bytes,
          .gpu_bytes_per_second = options.gpu_bytes_per_second,
          .weight_bytes = options.weight_bytes,
          .most_utilisation = options.most_utilisation};
}

std::string Heading(const SizeOptions& options) {
  return absl::StrCat(options.requests_per_second, " requests/s of ", options.prompt_tokens,
                      " prompt and ", options.output_tokens, " output tokens");
}

Plot EmptyPlot(const char* title) {
  return {.title = title,
          .x_label = "requests per second",
          .y_label = "workers",
          .log_x = true,
          .lines = {{"prefill", {}}, {"decode", {}}}};
}

absl::StatusOr<Report> PaperReport(const SizeOptions& options) {
  const std::optional<CoursePoolSize> size =
      SizeCoursePool(MakeCoursePool(options, options.requests_per_second));
  if (!size.has_value()) {
    return absl::FailedPreconditionError(
        "gpu-bytes: the weights and the KV cache of one request do not fit");
  }
  Report report{.command = "size", .mode = "paper"};
  report.tables.push_back(
      {.key = "pools",
       .heading = Heading(options),
       .columns = {{"pool", "pool"}, {"load", "GPUs kept busy"}, {"gpus", "GPUs"}},
       .rows = {{"prefill", Num(size->prefill_load, 3), Num(size->prefill_gpus)},
                {"decode", Num(size->decode_load, 3), Num(size->decode_gpus)}}});
  report.tables.push_back(
      {.key = "decode",
       .heading = "A decode GPU",
       .columns = {{"kv_gb_per_request", "KV a request, GB"},
                   {"batch", "batch"},
                   {"step_ms", "step, ms"},
                   {"batch_of_one_ratio", "decode : prefill unbatched"}},
       .rows = {{Num(size->kv_bytes_per_request / 1e9, 2), Num(size->decode_batch),
                 Num(size->step_ms, 2), Num(size->batch_of_one_ratio, 2)}}});
  report.claim = absl::StrCat(
      "confirms that the ratio of the pools follows the workload (here ", size->prefill_gpus,
      " prefill : ", size->decode_gpus,
      " decode); contradicts the model of one request, which without batches asks for ",
      FormatNumber({size->batch_of_one_ratio, 2}), " decode GPUs for each prefill GPU");
  report.plot = EmptyPlot("Course constants: GPUs by rate");
  for (const double step : kRateSteps) {
    const double rate = options.requests_per_second * step;
    if (const auto at_rate = SizeCoursePool(MakeCoursePool(options, rate)); at_rate.has_value()) {
      report.plot.lines[0].points.push_back({rate, double{1} * at_rate->prefill_gpus});
      report.plot.lines[1].points.push_back({rate, double{1} * at_rate->decode_gpus});
    }
  }
  return report;
}

PoolQuestion MakeQuestion(const SizeOptions& options, double requests_per_second) {
  return {.requests_per_second = requests_per_second,
          .prompt_tokens = options.prompt_tokens,
          .prompt_squared_variation = options.prompt_squared_variation,
          .output_tokens = options.output_tokens,
          .first_token_limit_seconds = options.first_token_limit_seconds,
          .token_limit_seconds = options.token_limit_seconds,
          .quantile = options.quantile,
          .most_utilisation = options.most_utilisation};
}

Table PoolTable(const SizeOptions& options, const PoolSizes& sizes) {
  const SplitPools& split = sizes.split;
  Table table{
      .key = "pools",
      .heading = absl::StrCat(Heading(options), "; ", options.quantile * 100,
                              " % with a first token in ", options.first_token_limit_seconds,
                              " s and tokens every ", options.token_limit_seconds, " s"),
      .columns = {{"pool", "pool"},
                  {"workers", "workers"},
                  {"load", "kept busy"},
                  {"first_token_ms", "first token, ms"},
                  {"token_ms", "token, ms"},
                  {"running", "running each"}},
      .rows = {{"prefill", Num(split.prefill_workers), Num(split.prefill_load, 3),
                Num(split.first_token_seconds * 1000, 1), Cell(), Cell()},
               {"decode", Num(split.decode_workers), Num(split.decode_load, 3), Cell(),
                Num(split.step_seconds * 1000, 2), Num(split.running, 2)}}};
  if (sizes.whole.has_value()) {
    table.rows.push_back({"colocated instead", Num(sizes.whole->workers), Cell(),
                          Num(sizes.whole->first_token_seconds * 1000, 1),
                          Num(sizes.whole->token_seconds * 1000, 2), Num(sizes.whole->running, 2)});
  } else {
    table.rows.push_back({"colocated instead", Cell(), Cell(), Cell(), Cell(), Cell()});
  }
  return table;
}

absl::StatusOr<Report> MeasuredReport(const SizeOptions& options, const Measured& measured) {
  ASSIGN_OR_RETURN(const TransportRate* transport, ChooseTransport(measured));
  const CostModel& model = *measured.model;
  ASSIGN_OR_RETURN(
      const PoolSizes sizes,
      SizePools(model, *transport, MakeQuestion(options, options.requests_per_second)));
  Report report{.command = "size", .mode = "measured"};
  report.tables.push_back(PoolTable(options, sizes));
  const double ratio = double{1} * sizes.split.prefill_workers / sizes.split.decode_workers;
  report.tables.push_back(
      {.key = "ratio",
       .heading = "Ratio of the pools",
       .columns = {{"prefill_per_decode", "prefill workers a decode worker"},
                   {"prefill_ms", "prefill of a prompt, ms"},
                   {"queue_ms", "queue at the quantile, ms"},
                   {"most_batch", "largest batch allowed"}},
       .rows = {{Num(ratio, 3), Num(sizes.split.prefill_seconds * 1000, 2),
                 Num(sizes.split.queue_seconds * 1000, 2), Num(sizes.split.most_batch)}}});
  AddErrors(model, report);
  report.claim = absl::StrCat(
      "\"2 prefill : 1 decode for long prompts, 1 : 2 for long outputs\": here ",
      sizes.split.prefill_workers, " : ", sizes.split.decode_workers, ", against ",
      sizes.whole.has_value() ? absl::StrCat(sizes.whole->workers) : std::string("no number of"),
      " workers that do both");
  report.notes.push_back(
      "queue: M/G/c after Lee and Longton with Erlang's C (one server: Pollaczek and Khinchine); "
      "running streams by Little's law");
  report.plot = EmptyPlot("Measured rates: workers by rate");
  report.plot.lines.push_back({"colocated instead", {}});
  for (const double step : kRateSteps) {
    const double rate = options.requests_per_second * step;
    const auto at_rate = SizePools(model, *transport, MakeQuestion(options, rate));
    if (!at_rate.ok()) {
      continue;
    }
    report.plot.lines[0].points.push_back({rate, double{1} * at_rate->split.prefill_workers});
    report.plot.lines[1].points.push_back({rate, double{1} * at_rate->split.decode_workers});
    if (at_rate->whole.has_value()) {
      report.plot.lines[2].points.push_back({rate, double{1} * at_rate->whole->workers});
    }
  }
  return report;
}

}  // namespace

absl::StatusOr<Report> PlanSize(const SizeOptions& options, const Measured& measured) {
  RETURN_IF_ERROR(Validate(options));
  return measured.model == nullptr ? PaperReport(options) : MeasuredReport(options, measured);
}

}  // namespace baton
