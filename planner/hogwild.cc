#include "planner/hogwild.h"

#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "planner/field_check.h"
#include "planner/python_random.h"

namespace baton {
namespace {

struct WorkCounts {
  int a = 0;
  int b = 0;
};

// Every worker means to write A; coordination makes it write what is behind. The number of draws
// depends on the outcome, and later tokens depend on the number of draws.
HogwildToken ChooseToken(PythonRandom& random, const HogwildConfig& config, WorkCounts seen) {
  if (random.NextDouble() < config.noise) {
    return HogwildToken::kNoise;
  }
  if (random.NextDouble() < config.coordination) {
    return seen.b < seen.a ? HogwildToken::kWorkB : HogwildToken::kWorkA;
  }
  return random.NextDouble() < config.coordination_talk ? HogwildToken::kCoordination
                                                        : HogwildToken::kWorkA;
}

absl::Status Validate(const HogwildConfig& config) {
  RETURN_IF_ERROR(CheckRange("workers", config.workers, 1, kMostHogwildWorkers));
  RETURN_IF_ERROR(CheckRange("steps", config.steps, 1, kMostHogwildSteps));
  RETURN_IF_ERROR(CheckRange("coordination", config.coordination, 0, 1));
  RETURN_IF_ERROR(CheckRange("noise", config.noise, 0, 1));
  return CheckRange("coordination_talk", config.coordination_talk, 0, 1);
}

}  // namespace

absl::StatusOr<HogwildResult> RunHogwild(const HogwildConfig& config) {
  RETURN_IF_ERROR(Validate(config));
  std::vector<PythonRandom> random;
  for (int worker = 0; worker < config.workers; ++worker) {
    random.emplace_back(config.seed + static_cast<std::uint64_t>(worker));
  }
  HogwildResult result{.steps = config.steps};
  for (int step = 0; step < config.steps; ++step) {
    const WorkCounts at_start = {result.work_a, result.work_b};
    bool wrote_a = false;
    bool wrote_b = false;
    for (int worker = 0; worker < config.workers; ++worker) {
      const WorkCounts now = {result.work_a, result.work_b};
      const HogwildToken token =
          ChooseToken(random[static_cast<std::size_t>(worker)], config,
                      config.view == HogwildView::kImmediate ? now : at_start);
      bool redundant = true;
      switch (token) {
        case HogwildToken::kWorkA:
          ++result.work_a;
          redundant = wrote_a;
          wrote_a = true;
          break;
        case HogwildToken::kWorkB:
          ++result.work_b;
          redundant = wrote_b;
          wrote_b = true;
          break;
        case HogwildToken::kNoise:
          ++result.noise;
          break;
        case HogwildToken::kCoordination:
          ++result.coordination;
          break;
      }
      if (result.trace.size() < kHogwildTraceEntries) {
        result.trace.push_back({step, worker, token, redundant});
      }
    }
    result.progress += (wrote_a ? 1 : 0) + (wrote_b ? 1 : 0);
  }
  result.work_tokens = result.work_a + result.work_b;
  result.tokens = result.work_tokens + result.noise + result.coordination;
  return result;
}

double ExpectedHogwildProgress(const HogwildConfig& config) {
  const double awake = 1 - config.noise;
  const double w = config.coordination;
  const double work = awake * (w + (1 - config.coordination_talk) * (1 - w));
  if (config.workers == 1) {
    return config.steps * work;
  }
  BATON_CHECK(config.workers == 2 && config.view == HogwildView::kImmediate);
  if (w == 0) {  // both write A or nothing of use
    return config.steps * (1 - (1 - work) * (1 - work));
  }
  BATON_CHECK(w == 1);  // never the same: the second sees the first
  return config.steps * 2 * awake;
}

absl::Status ValidateHogwildTask(const HogwildTask& task) {
  RETURN_IF_ERROR(CheckPositive("serial_steps", task.serial_steps, 1e12));
  RETURN_IF_ERROR(CheckRange("parallel", task.parallel, 0, 1));
  return CheckRange("overhead_steps", task.overhead_steps, 0, 1e12);
}

double ExpectedSpeedup(const HogwildTask& task, int workers) {
  const double serial = 1 - task.parallel;
  const double steps =
      task.serial_steps * (serial + task.parallel / workers) + task.overhead_steps * workers;
  return task.serial_steps / steps;
}

int BestWorkers(const HogwildTask& task, int most) {
  int best = 1;
  for (int workers = 2; workers <= most; ++workers) {
    if (ExpectedSpeedup(task, workers) > ExpectedSpeedup(task, best)) {
      best = workers;
    }
  }
  return best;
}

double BestWorkersClosedForm(const HogwildTask& task) {
  return std::sqrt(task.serial_steps * task.parallel / task.overhead_steps);
}

double BreakEvenSerialSteps(const HogwildTask& task, int workers) {
  if (workers < 2 || task.parallel == 0) {
    return std::numeric_limits<double>::infinity();
  }
  return task.overhead_steps * workers * workers / (task.parallel * (workers - 1));
}

}  // namespace baton
