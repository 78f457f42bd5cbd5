#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// Two models of N workers that write one answer over a shared cache (Hogwild! inference,
// arXiv 2504.06261): a simulation of who writes what, and a formula with a cost of coordination.
// All are pure functions; thread-safe.

enum class HogwildToken { kWorkA, kWorkB, kNoise, kCoordination };

// What workers know of each other when they choose a token.
enum class HogwildView {
  kImmediate,  // everything written so far, this step included (the course)
  kStale,      // what had been written when the step began, as in a batched decode
};

struct HogwildConfig {
  int workers = 2;                 // 1 to kMostHogwildWorkers
  int steps = 200;                 // 1 to kMostHogwildSteps
  double coordination = 0.8;       // probability of taking the work that is behind, 0 to 1
  double noise = 0.05;             // probability of a useless token, 0 to 1
  double coordination_talk = 0.1;  // of a token about coordination, when not taking what is behind
  std::uint64_t seed = 42;         // worker i draws from the generator of seed + i
  HogwildView view = HogwildView::kImmediate;
};

inline constexpr int kMostHogwildWorkers = 1024;
inline constexpr int kMostHogwildSteps = 1'000'000;

struct HogwildTraceEntry {
  int step = 0;
  int worker = 0;
  HogwildToken token = HogwildToken::kNoise;
  bool redundant = false;  // no progress: noise, coordination, or work that the step already has
};

struct HogwildResult {
  int steps = 0;
  int tokens = 0;
  int work_tokens = 0;  // A and B together
  int progress = 0;     // over all steps, how many different kinds of work were written
  int work_a = 0;
  int work_b = 0;
  int noise = 0;
  int coordination = 0;
  std::vector<HogwildTraceEntry> trace;  // the first kHogwildTraceEntries tokens

  double tokens_per_step() const { return double{1} * tokens / steps; }
  double work_per_step() const { return double{1} * work_tokens / steps; }
  double progress_per_step() const { return double{1} * progress / steps; }
};

inline constexpr int kHogwildTraceEntries = 12;

// INVALID_ARGUMENT naming the field that is out of range.
absl::StatusOr<HogwildResult> RunHogwild(const HogwildConfig& config);

// Progress to expect, where there is a closed form: one worker, or two that see each other at once
// with coordination 0 or 1. REQUIRES: one of these.
double ExpectedHogwildProgress(const HogwildConfig& config);

// Speed-up by a formula: a task of `serial_steps` decode steps, of which the share `parallel` can
// be divided, with `overhead_steps` for every worker.
struct HogwildTask {
  double serial_steps = 10'000;  // above 0
  double parallel = 0.7;         // 0 to 1
  double overhead_steps = 200;   // of each worker; at least 0
};

absl::Status ValidateHogwildTask(const HogwildTask& task);

// S = T / (T ((1 - p) + p / N) + c N). One worker pays c as well, so S(1) < 1 unless c is 0.
// REQUIRES: a valid task, workers >= 1.
double ExpectedSpeedup(const HogwildTask& task, int workers);

// The whole number of workers, up to `most`, with the largest speed-up; the fewest of equals.
int BestWorkers(const HogwildTask& task, int most = kMostHogwildWorkers);

// sqrt(T p / c): where the speed-up is largest if workers came in fractions; infinite when c is 0.
double BestWorkersClosedForm(const HogwildTask& task);

// Length of the task above which `workers` are quicker than the serial run: c N^2 / (p (N - 1)).
// Infinite when nothing can be divided or there is one worker.
double BreakEvenSerialSteps(const HogwildTask& task, int workers);

}  // namespace baton
