#include "bench/measured_crossover.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/load_metrics.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr int kRunningPrompt = 256;                           // tokens, of a running stream
constexpr Duration kSettle = std::chrono::milliseconds(300);  // for each running stream
constexpr Duration kBetweenProbes = std::chrono::milliseconds(250);
constexpr double kStretch = 1.4;  // room for a probe that takes longer than predicted
// Of the predicted one; running streams are to outlast the probes.
constexpr double kQuickestStep = 0.8;
constexpr double kMostSteps = 4000;  // of a running stream

double Median(std::vector<double> values) {
  return Describe(std::move(values)).p50;
}

double Seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

LoadRequest MakeProbe(const TokenCounts& tokens, v1::Path path, std::uint64_t seed) {
  return {.shape = {.prompt_tokens = tokens.prompt, .output_tokens = tokens.output},
          .seed = seed,
          .kind = "probe",
          .path = path};
}

// Requests that all come at once.
absl::StatusOr<std::vector<RequestRecord>> RunAtOnce(BenchLoad& load,
                                                     const TokenCounts& tokens,
                                                     v1::Path path,
                                                     int requests) {
  Workload workload;
  for (int i = 0; i < requests; ++i) {
    workload.requests.push_back(MakeProbe(tokens, path, static_cast<std::uint64_t>(i)));
  }
  ASSIGN_OR_RETURN(LoadRun run, load.Run(std::move(workload)));
  for (const RequestRecord& record : run.records) {
    if (!record.ok()) {
      return absl::UnavailableError(absl::StrCat(
          "a probe of ", tokens.prompt, " tokens: ", std::string(record.status.message())));
    }
  }
  return std::move(run.records);
}

// The rates of idle workers, as the planner wants them.
class RateMeter {
 public:
  RateMeter(const CrossoverOptions& options, BenchLoad& load) : options_(options), load_(load) {}

  absl::StatusOr<MeasuredRates> Measure() {
    MeasuredRates rates{.source = "baton-bench compare, medians by the clock",
                        .kv_bytes_per_token = options_.kv_bytes_per_token,
                        .layers = kLayerGroups,
                        .max_batch_tokens = static_cast<double>(options_.max_batch_tokens)};
    for (const int prompt : {32, 128, 256, 512, 1024, 2048}) {
      ASSIGN_OR_RETURN(const double seconds, FirstToken(prompt, v1::PATH_COLOCATED));
      rates.prefill.push_back(
          {.prompt_tokens = static_cast<double>(prompt), .tokens_per_second = prompt / seconds});
    }
    for (const int batch : {1, 4}) {
      for (const int depth : {64, 1024}) {
        ASSIGN_OR_RETURN(const double seconds, Step(batch, depth));
        rates.decode.push_back({.batch = static_cast<double>(batch),
                                .depth_tokens = depth + kSteps / 2.0,
                                .step_seconds = seconds});
      }
    }
    RETURN_IF_ERROR(AddTransport(rates));
    return rates;
  }

 private:
  static constexpr int kRepeats = 2;
  static constexpr int kSteps = 24;
  static constexpr double kLayerGroups = 30;

  absl::StatusOr<double> FirstToken(int prompt, v1::Path path) {
    std::vector<double> seconds;
    for (int i = 0; i < kRepeats; ++i) {
      ASSIGN_OR_RETURN(const auto records,
                       RunAtOnce(load_, {.prompt = prompt, .output = 1}, path, 1));
      seconds.push_back(FirstTokenMs(records[0]) / 1000);
    }
    return Median(std::move(seconds));
  }

  // The median gap once all of the batch run: those of its last request.
  absl::StatusOr<double> Step(int batch, int depth) {
    ASSIGN_OR_RETURN(
        const auto records,
        RunAtOnce(load_, {.prompt = depth, .output = kSteps + batch}, v1::PATH_COLOCATED, batch));
    const RequestRecord& last = *std::max_element(
        records.begin(), records.end(), [](const RequestRecord& a, const RequestRecord& b) {
          return a.token_times.front() < b.token_times.front();
        });
    std::vector<double> gaps = InterTokenMs(last);
    gaps.resize(kSteps / 2);  // earlier requests of the batch end before the last one
    return Median(std::move(gaps)) / 1000;
  }

  // What a split adds to the first token of a short prompt is the fixed time. The rate is such that
  // what the model leaves over of a long prompt's transfer is what was.
  absl::Status AddTransport(MeasuredRates& rates) {
    constexpr int kShort = 128;
    constexpr int kLong = 2048;
    constexpr double kLeastSeconds = 1e-4;
    ASSIGN_OR_RETURN(const double split, FirstToken(kShort, v1::PATH_DISAGGREGATED));
    ASSIGN_OR_RETURN(const double whole, FirstToken(kShort, v1::PATH_COLOCATED));
    std::vector<double> exposed;
    for (int i = 0; i < kRepeats; ++i) {
      ASSIGN_OR_RETURN(const auto records,
                       RunAtOnce(load_, {.prompt = kLong, .output = 2}, v1::PATH_DISAGGREGATED, 1));
      exposed.push_back(records[0].server.exposed_transfer_ms / 1000);
    }
    const double pieces = kLayerGroups * kLong / options_.max_batch_tokens;
    const double last_piece = kLong * rates.kv_bytes_per_token / pieces;
    rates.transports.push_back(
        {.name = load_.transport(),
         .fixed_seconds = std::max(split - whole, kLeastSeconds),
         .bytes_per_second = last_piece / std::max(Median(std::move(exposed)), kLeastSeconds)});
    return absl::OkStatus();
  }

  const CrossoverOptions& options_;  // the caller's
  BenchLoad& load_;                  // the caller's
};

// From the arrival to the last token.
struct PathSeconds {
  double colocated = 0;
  double disaggregated = 0;
};

PathSeconds Predict(const CostModel& model, const CrossoverCell& cell) {
  const double running = cell.running;
  const WorkerLoad decode_load{.running_sequences = running,
                               .depth_tokens = running > 0 ? kRunningPrompt : 0.0};
  const PromptTokens prompt{.tokens = static_cast<double>(cell.prompt_tokens)};
  const double depth = (running * kRunningPrompt + cell.prompt_tokens) / (running + 1);
  const double steps = (cell.output_tokens - 1) * model.DecodeStepSeconds(running + 1, depth);
  const WorkerLoad idle;
  const FirstTokenTime whole = model.PredictColocated(prompt, decode_load);
  const FirstTokenTime split = PredictDisaggregated(
      {.prefill_worker = model, .prefill_load = idle, .transport = model.rates().transports[0]},
      prompt, prompt);
  return {.colocated = whole.first_token_seconds() + steps,
          .disaggregated = cell.output_tokens == 1 ? split.first_token_seconds()
                                                   : split.decoding_seconds() + steps};
}

// Runs the probes and collects their times.
class Prober {
 public:
  Prober(const CrossoverOptions& options, const CostModel& model, BenchLoad& load)
      : options_(options), model_(model), load_(load) {}

  // Cells of one prompt length beside so many running streams, one for each output length.
  absl::StatusOr<std::vector<CrossoverCell>> Measure(int prompt, int running) {
    const std::vector<int>& outputs = options_.plan.crossover_outputs;
    std::map<int, std::vector<double>> colocated;  // by output length
    std::map<int, std::vector<double>> split;
    for (int repeat = 0; repeat < options_.plan.crossover_repeats; ++repeat) {
      ASSIGN_OR_RETURN(const LoadRun run, RunBoth(prompt, running, repeat % 2 == 1));
      if (!IsClean(run, running)) {
        options_.progress(
            absl::StrCat("crossover: a try of ", prompt, " tokens was spoiled and is left out"));
        continue;
      }
      for (const RequestRecord& record : run.records) {
        if (record.kind == "probe") {
          auto& times = record.path == v1::PATH_DISAGGREGATED ? split : colocated;
          for (const int output : outputs) {
            times[output].push_back(Seconds(
                record.token_times[static_cast<std::size_t>(output) - 1] - record.scheduled));
          }
        }
      }
    }
    std::vector<CrossoverCell> cells;
    for (const int output : outputs) {
      if (colocated[output].empty()) {
        continue;
      }
      CrossoverCell cell{.prompt_tokens = prompt, .output_tokens = output, .running = running};
      const PathSeconds predicted = Predict(model_, cell);
      cell.colocated_seconds = Median(colocated[output]);
      cell.disaggregated_seconds = Median(split[output]);
      cell.predicted_colocated_seconds = predicted.colocated;
      cell.predicted_disaggregated_seconds = predicted.disaggregated;
      cells.push_back(cell);
    }
    return cells;
  }

 private:
  // Running streams first, then a probe by one path, and when it is over one by the other.
  absl::StatusOr<LoadRun> RunBoth(int prompt, int running, bool split_first) {
    const TokenCounts tokens{.prompt = prompt, .output = options_.plan.crossover_outputs.back()};
    const PathSeconds predicted = Predict(
        model_, {.prompt_tokens = prompt, .output_tokens = tokens.output, .running = running});
    const Duration room =
        FromSeconds(kStretch * std::max(predicted.colocated, predicted.disaggregated)) +
        kBetweenProbes;
    const Duration begin = running * kSettle;
    const double step = kQuickestStep * model_.DecodeStepSeconds(running, kRunningPrompt);
    const double steps = std::min(Seconds(begin + 2 * room) / step, kMostSteps);
    Workload workload;
    for (int i = 0; i < running; ++i) {
      workload.requests.push_back(
          MakeProbe({.prompt = kRunningPrompt, .output = static_cast<int>(steps)},
                    v1::PATH_COLOCATED, static_cast<std::uint64_t>(i)));
      workload.requests.back().kind = "running";
    }
    for (int i = 0; i < 2; ++i) {
      const bool split = (i == 0) == split_first;
      workload.requests.push_back(MakeProbe(tokens,
                                            split ? v1::PATH_DISAGGREGATED : v1::PATH_COLOCATED,
                                            1000 + static_cast<std::uint64_t>(i)));
      workload.requests.back().shape.arrival = begin + i * room;
    }
    return load_.Run(std::move(workload));
  }

  // Every request was answered in full, one probe was over before the other came, and the streams
  // ran from before the first to after the second.
  static bool IsClean(const LoadRun& run, int running) {
    const RequestRecord& first = run.records[static_cast<std::size_t>(running)];
    const RequestRecord& second = run.records[static_cast<std::size_t>(running) + 1];
    bool clean = first.ok() && second.ok() && first.ended < second.scheduled;
    for (const RequestRecord& record : run.records) {
      clean = clean && record.ok() &&
              (record.kind != "running" || (record.token_times.front() < first.scheduled &&
                                            record.token_times.back() > second.ended));
    }
    return clean;
  }

  const CrossoverOptions& options_;  // the caller's
  const CostModel& model_;           // the caller's
  BenchLoad& load_;                  // the caller's
};

}  // namespace

absl::StatusOr<Crossover> MeasureCrossover(const CrossoverOptions& options, BenchLoad& load) {
  Crossover crossover;
  if (options.rates.has_value()) {
    crossover.rates = *options.rates;
  } else {
    ASSIGN_OR_RETURN(crossover.rates, RateMeter(options, load).Measure());
  }
  ASSIGN_OR_RETURN(const CostModel model, CostModel::Fit(crossover.rates));
  if (model.rates().transports.empty()) {
    return absl::InvalidArgumentError("transports: the rates have none, and a split needs one");
  }
  Prober prober(options, model, load);
  for (const int running : options.plan.crossover_running) {
    for (const int prompt : options.plan.crossover_prompts) {
      ASSIGN_OR_RETURN(const std::vector<CrossoverCell> cells, prober.Measure(prompt, running));
      for (const CrossoverCell& cell : cells) {
        crossover.cells.push_back(cell);
      }
      if (!cells.empty()) {
        options.progress(
            absl::StrFormat("crossover, %d tokens, %d running: first token %.0f ms colocated, %.0f "
                            "ms disaggregated",
                            prompt, running, 1000 * cells[0].colocated_seconds,
                            1000 * cells[0].disaggregated_seconds));
      }
    }
  }
  return crossover;
}

}  // namespace baton
