#include "bench/engine_rounds.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/cores.h"
#include "bench/engine_runner.h"
#include "bench/machine_limits.h"
#include "common/status_macros.h"

namespace baton {
namespace {

// A figure of ours is repeated until this much time is spent, or so often.
constexpr double kLeastSeconds = 0.6;
constexpr int kMostRepeats = 7;

// The peer's longest figure takes 16 s on an idle machine. On a busy one its threads wait for each
// other by spinning, and two of them can take minutes.
constexpr double kPeerPatienceSeconds = 90;
constexpr double kLeastPeerPatienceSeconds = 10;
// How much longer than the time limit a run may take for the sake of the peer.
constexpr double kOvertimeSeconds = 90;

double SecondsSince(TimePoint begin) {
  return std::chrono::duration<double>(Clock::System().Now() - begin).count();
}

double Mean(double a, double b) {
  return (a + b) / 2;
}

// Everything of one run of the program.
//
// Not thread-safe.
class EngineRounds {
 public:
  EngineRounds(const EngineRoundsOptions& options, const Checkpoint& checkpoint)
      : options_(options), checkpoint_(checkpoint) {}

  absl::StatusOr<EngineReport> Run();

 private:
  struct MeasuredLimits {
    Limits limits;
    double tile_flops_per_second = 0;
  };

  absl::Status RunRound(int round, EngineReport& report);
  absl::StatusOr<FigureRound> MeasureFigure(const Figure& figure);
  absl::StatusOr<Timing> MeasureOurs(const Figure& figure, int max_batch_tokens);
  // nullopt when it takes too long.
  absl::StatusOr<std::optional<PeerTiming>> MeasurePeer(const Figure& figure, PeerWeights weights);
  absl::StatusOr<EngineRunner*> RunnerFor(int threads, int max_batch_tokens);
  MeasuredLimits MeasureLimits(int threads) const;
  std::size_t PoolBytes() const;
  double time_limit_seconds() const {
    return std::chrono::duration<double>(options_.time_limit).count();
  }
  void Progress(const std::string& line) const { options_.progress(line); }

  const EngineRoundsOptions& options_;
  const Checkpoint& checkpoint_;
  const TimePoint begin_ = Clock::System().Now();
  // By threads and max_batch_tokens; engines share nothing but the checkpoint.
  std::map<std::pair<int, int>, std::unique_ptr<EngineRunner>> runners_;
  std::string isa_;
};

absl::StatusOr<EngineReport> EngineRounds::Run() {
  EngineReport report{.model = checkpoint_.config().name,
                      .max_batch_tokens = options_.max_batch_tokens,
                      .has_peer = options_.peer != nullptr};
  for (const Figure& figure : options_.figures) {
    if (figure.sequence_tokens() > checkpoint_.config().context_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat(figure.name, " needs a context of ", figure.sequence_tokens(),
                       " tokens, the model has ", checkpoint_.config().context_tokens));
    }
    report.results.push_back({.figure = figure, .work = figure.WorkFor(checkpoint_.config())});
    RETURN_IF_ERROR(RunnerFor(figure.threads, options_.max_batch_tokens).status());
  }
  for (int round = 1; round <= options_.most_rounds; ++round) {
    const TimePoint round_begin = Clock::System().Now();
    RETURN_IF_ERROR(RunRound(round, report));
    if (SecondsSince(begin_) + SecondsSince(round_begin) > time_limit_seconds()) {
      break;
    }
  }
  report.isa = isa_;
  report.seconds = SecondsSince(begin_);
  return report;
}

absl::Status EngineRounds::RunRound(int round, EngineReport& report) {
  if (options_.worker.has_value()) {
    ASSIGN_OR_RETURN(const WorkerFootprint footprint, ProbeWorker(*options_.worker));
    report.worker.push_back(footprint);
    Progress(absl::StrFormat("round %d: worker: ready after %.2f s, %.0f MB besides the pool",
                             round, footprint.start_seconds, footprint.resident_bytes * 1e-6));
  }
  for (FigureResult& result : report.results) {
    ASSIGN_OR_RETURN(const FigureRound measured, MeasureFigure(result.figure));
    const double rate = result.figure.tokens() / measured.ours.wall_seconds;
    std::string line = absl::StrFormat(
        "round %d: %s: %.1f tokens/s, %.0f%% of the limit (%s)", round, result.figure.name, rate,
        100 * FloorSeconds(result.work, measured.limits) / measured.ours.wall_seconds,
        LimitName(result.work, measured.limits));
    if (measured.peer.has_value()) {
      absl::StrAppend(
          &line, absl::StrFormat(", %.2f times the peer",
                                 measured.peer->timing.wall_seconds / measured.ours.wall_seconds));
    }
    Progress(line);
    result.rounds.push_back(measured);
  }
  return absl::OkStatus();
}

absl::StatusOr<FigureRound> EngineRounds::MeasureFigure(const Figure& figure) {
  RETURN_IF_ERROR(PinProcess(IdlestCores(figure.threads)));
  FigureRound round;
  const MeasuredLimits before = MeasureLimits(figure.threads);
  ASSIGN_OR_RETURN(round.ours, MeasureOurs(figure, options_.max_batch_tokens));
  if (figure.kind == FigureKind::kPrefill && figure.threads == 1 &&
      options_.max_batch_tokens != kLongStepTokens) {
    ASSIGN_OR_RETURN(round.ours_long_steps, MeasureOurs(figure, kLongStepTokens));
  }
  if (options_.peer != nullptr) {
    ASSIGN_OR_RETURN(round.peer, MeasurePeer(figure, PeerWeights::kBf16));
    const bool compares_file =
        figure.name == "prefill_512" || figure.name == "decode_0" || figure.name == "decode_2048";
    if (compares_file) {
      ASSIGN_OR_RETURN(round.peer_as_given, MeasurePeer(figure, PeerWeights::kAsGiven));
    }
  }
  const MeasuredLimits after = MeasureLimits(figure.threads);
  round.limits = {Mean(before.limits.flops_per_second, after.limits.flops_per_second),
                  Mean(before.limits.bytes_per_second, after.limits.bytes_per_second)};
  round.tile_flops_per_second = Mean(before.tile_flops_per_second, after.tile_flops_per_second);
  return round;
}

absl::StatusOr<Timing> EngineRounds::MeasureOurs(const Figure& figure, int max_batch_tokens) {
  ASSIGN_OR_RETURN(EngineRunner* const runner, RunnerFor(figure.threads, max_batch_tokens));
  std::vector<double> wall;
  std::vector<double> cpu;
  const TimePoint begin = Clock::System().Now();
  do {
    ASSIGN_OR_RETURN(const Timing timing, runner->Measure(figure));
    wall.push_back(timing.wall_seconds);
    cpu.push_back(timing.cpu_seconds);
  } while (SecondsSince(begin) < kLeastSeconds && wall.size() < kMostRepeats);
  return Timing{.wall_seconds = Median(std::move(wall)), .cpu_seconds = Median(std::move(cpu))};
}

absl::StatusOr<std::optional<PeerTiming>> EngineRounds::MeasurePeer(const Figure& figure,
                                                                    PeerWeights weights) {
  const double left = time_limit_seconds() + kOvertimeSeconds - SecondsSince(begin_);
  if (left < kLeastPeerPatienceSeconds) {
    Progress(figure.name + ": no time left for the peer");
    return std::nullopt;
  }
  absl::StatusOr<PeerTiming> timing = options_.peer->Measure(
      figure, weights,
      std::chrono::duration_cast<Duration>(
          std::chrono::duration<double>(std::min(left, kPeerPatienceSeconds))));
  if (absl::IsDeadlineExceeded(timing.status())) {
    Progress(std::string(timing.status().message()));
    return std::nullopt;
  }
  RETURN_IF_ERROR(timing.status());
  return *timing;
}

absl::StatusOr<EngineRunner*> EngineRounds::RunnerFor(int threads, int max_batch_tokens) {
  std::unique_ptr<EngineRunner>& runner = runners_[{threads, max_batch_tokens}];
  if (runner == nullptr) {
    ASSIGN_OR_RETURN(runner, EngineRunner::Create({.isa = options_.isa,
                                                   .threads = threads,
                                                   .max_batch_tokens = max_batch_tokens,
                                                   .kv_pool_bytes = PoolBytes()},
                                                  checkpoint_));
    isa_ = runner->isa();
  }
  return runner.get();
}

// The limit by which figures of all machines are compared is that of vectors; tiles have their own
// beside it.
EngineRounds::MeasuredLimits EngineRounds::MeasureLimits(int threads) const {
  const bool tiles = isa_ == "amx";
  return {.limits = {.flops_per_second = MeasurePeakFlops(tiles ? "avx512bf16" : isa_, threads),
                     .bytes_per_second = MeasureReadBytesPerSecond(threads)},
          .tile_flops_per_second = tiles ? MeasurePeakFlops(isa_, threads) : 0};
}

// Enough for every figure, with room for streams that run on while others start.
std::size_t EngineRounds::PoolBytes() const {
  constexpr int kSpareTokens = 64;
  double tokens =
      std::max(options_.max_batch_tokens, kLongStepTokens) + kSpareTokens;  // warming up
  for (const Figure& figure : options_.figures) {
    const double streams = figure.kind == FigureKind::kPrefill ? 1 : figure.decode.streams;
    tokens = std::max(tokens, streams * (figure.sequence_tokens() + kSpareTokens));
  }
  return static_cast<std::size_t>(tokens * KvBytesPerToken(checkpoint_.config()));
}

}  // namespace

absl::StatusOr<EngineReport> MeasureEngine(const EngineRoundsOptions& options,
                                           const Checkpoint& checkpoint) {
  return EngineRounds(options, checkpoint).Run();
}

}  // namespace baton
