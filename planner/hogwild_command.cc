#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "planner/break_even.h"
#include "planner/commands.h"
#include "planner/hogwild.h"

namespace baton {
namespace {

// The course divides every run by this one, whatever the coordination of the run is.
constexpr double kReferenceCoordination = 0.8;

HogwildConfig MakeConfig(const HogwildOptions& options, int workers, double coordination) {
  return {.workers = workers,
          .steps = static_cast<int>(options.steps),
          .coordination = coordination,
          .seed = static_cast<std::uint64_t>(options.seed),
          .view = options.view == "stale" ? HogwildView::kStale : HogwildView::kImmediate};
}

absl::StatusOr<std::vector<Cell>> RunRow(const HogwildOptions& options, double coordination) {
  const int workers = static_cast<int>(options.workers);
  ASSIGN_OR_RETURN(const HogwildResult result,
                   RunHogwild(MakeConfig(options, workers, coordination)));
  ASSIGN_OR_RETURN(const HogwildResult reference,
                   RunHogwild(MakeConfig(options, 1, kReferenceCoordination)));
  ASSIGN_OR_RETURN(const HogwildResult alone, RunHogwild(MakeConfig(options, 1, coordination)));
  const auto over = [&result](int progress) -> Cell {
    return progress == 0 ? Cell() : Num(double{1} * result.progress / progress, 3);
  };
  return std::vector<Cell>{Num(workers),
                           Num(coordination),
                           Num(result.tokens),
                           Num(result.work_tokens),
                           Num(result.work_a),
                           Num(result.work_b),
                           Num(result.noise),
                           Num(result.coordination),
                           Num(result.progress),
                           Num(result.progress_per_step(), 3),
                           over(reference.progress),
                           over(alone.progress)};
}

absl::StatusOr<Table> Simulation(const HogwildOptions& options) {
  Table table{.key = "runs",
              .heading = absl::StrCat("Simulation: ", options.steps, " steps, seed ", options.seed,
                                      ", ", options.view, " view"),
              .columns = {{"workers", "workers"},
                          {"coordination", "coordination"},
                          {"tokens", "tokens"},
                          {"work_tokens", "work"},
                          {"work_a", "A"},
                          {"work_b", "B"},
                          {"noise", "noise"},
                          {"coordination_tokens", "talk"},
                          {"progress", "progress"},
                          {"progress_per_step", "a step"},
                          {"speedup", "speed-up"},
                          {"speedup_at_equal_coordination", "at equal coordination"}}};
  std::vector<double> weights = {0, 0.2, 0.5, 0.8, 1};
  std::erase(weights, options.coordination);
  weights.insert(weights.begin(), options.coordination);
  for (const double weight : weights) {
    ASSIGN_OR_RETURN(std::vector<Cell> row, RunRow(options, weight));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table Formula(const HogwildTask& task, const HogwildOptions& options, const CostModel* model) {
  Table table{.key = "formula",
              .heading = absl::StrCat(
                  "Formula T / (T ((1 - p) + p / N) + c N): T = ", task.serial_steps,
                  " steps, p = ", task.parallel, ", c = ", task.overhead_steps, " steps"),
              .columns = {{"workers", "workers"},
                          {"speedup", "speed-up"},
                          {"break_even_serial_steps", "pays above T"}}};
  const int best = BestWorkers(task);
  std::vector<int> counts = {1, 2, 4, 8, static_cast<int>(options.workers), best};
  if (model != nullptr) {
    table.columns.push_back({"measured_speedup", "with measured steps"});
    counts.push_back(BestMeasuredWorkers(*model, task, options.depth_tokens));
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  for (const int workers : counts) {
    std::vector<Cell> row = {Num(workers), Num(ExpectedSpeedup(task, workers), 6),
                             Num(BreakEvenSerialSteps(task, workers), 1)};
    if (model != nullptr) {
      row.push_back(Num(MeasuredGroupSpeedup(*model, task, options.depth_tokens, workers), 6));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table BestNumber(const HogwildTask& task, const HogwildOptions& options, const CostModel* model) {
  Table table{
      .key = "best",
      .heading = "Best number of workers",
      .columns = {{"step_times", "steps take"},
                  {"workers", "N*"},
                  {"closed_form", "sqrt(T p / c)"},
                  {"speedup", "speed-up"}},
      .rows = {{"the same for every N", Num(BestWorkers(task)), Num(BestWorkersClosedForm(task), 2),
                Num(ExpectedSpeedup(task, BestWorkers(task)), 3)}}};
  if (model != nullptr) {
    const int best = BestMeasuredWorkers(*model, task, options.depth_tokens);
    table.rows.push_back({absl::StrCat("what was measured, at depth ", options.depth_tokens),
                          Num(best), Cell(),
                          Num(MeasuredGroupSpeedup(*model, task, options.depth_tokens, best), 3)});
  }
  return table;
}

Plot FormulaPlot(const HogwildTask& task, const HogwildOptions& options, const CostModel* model) {
  Plot plot{.title = "Speed-up of a shared-cache group",
            .x_label = "workers N",
            .y_label = "speed-up over one worker",
            .lines = {{"equal steps", {}}}};
  if (model != nullptr) {
    plot.lines.push_back({"measured steps", {}});
  }
  const int most = std::max(16, 2 * BestWorkers(task, 64));
  for (int workers = 1; workers <= most; ++workers) {
    plot.lines[0].points.push_back({double{1} * workers, ExpectedSpeedup(task, workers)});
    if (model != nullptr) {
      plot.lines[1].points.push_back(
          {double{1} * workers, MeasuredGroupSpeedup(*model, task, options.depth_tokens, workers)});
    }
  }
  return plot;
}

}  // namespace

absl::StatusOr<Report> PlanHogwild(const HogwildOptions& options, const Measured& measured) {
  const HogwildTask task = {options.serial_steps, options.parallel, options.overhead_steps};
  RETURN_IF_ERROR(ValidateHogwildTask(task));
  Report report{.command = "hogwild", .mode = measured.model == nullptr ? "paper" : "measured"};
  ASSIGN_OR_RETURN(Table runs, Simulation(options));
  report.tables.push_back(std::move(runs));
  report.tables.push_back(Formula(task, options, measured.model));
  report.tables.push_back(BestNumber(task, options, measured.model));
  report.claim =
      "confirms \"1.8x at p = 0.7, N = 4\" as the formula's value (1.802 for T = 10000, c = 200); "
      "contradicts \"duplicated work makes it slower than one worker\": only c N in the formula "
      "does, never the simulation";
  if (measured.model != nullptr) {
    const int best = BestMeasuredWorkers(*measured.model, task, options.depth_tokens);
    report.claim = absl::StrCat(
        "\"two to four workers, 1.8x at four\": with measured steps N* is ", best, ", with ",
        FormatNumber({MeasuredGroupSpeedup(*measured.model, task, options.depth_tokens, best), 3}),
        "x, and four give ",
        FormatNumber({MeasuredGroupSpeedup(*measured.model, task, options.depth_tokens, 4), 3}),
        "x");
  }
  report.notes = {
      "the speed-up of a run is over one worker with coordination 0.8, as the course prints it"};
  report.plot = FormulaPlot(task, options, measured.model);
  return report;
}

}  // namespace baton
