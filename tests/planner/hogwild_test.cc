#include "planner/hogwild.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace baton {
namespace {

using testing::HasSubstr;

HogwildResult Hogwild(int workers,
                      double coordination,
                      HogwildView view = HogwildView::kImmediate) {
  return *RunHogwild({.workers = workers, .coordination = coordination, .view = view});
}

// work / progress (A, B, noise, coordination) after 200 steps, seed 42.
struct GridCell {
  double coordination;
  int workers;
  int work;
  int progress;
  int a;
  int b;
  int noise;
  int talk;
};

const GridCell kGrid[] = {
    {0.0, 1, 171, 171, 171, 0, 7, 22},       {0.0, 2, 343, 197, 343, 0, 18, 39},
    {0.0, 3, 502, 200, 502, 0, 38, 60},      {0.0, 4, 673, 200, 673, 0, 48, 79},
    {0.0, 8, 1352, 200, 1352, 0, 85, 163},   {0.1, 1, 172, 172, 156, 16, 6, 22},
    {0.1, 2, 343, 219, 305, 38, 15, 42},     {0.1, 3, 502, 249, 443, 59, 38, 60},
    {0.1, 4, 679, 264, 600, 79, 50, 71},     {0.1, 8, 1362, 312, 1206, 156, 92, 146},
    {0.2, 1, 169, 169, 141, 28, 9, 22},      {0.2, 2, 340, 238, 271, 69, 19, 41},
    {0.2, 3, 498, 279, 397, 101, 43, 59},    {0.2, 4, 668, 301, 530, 138, 56, 76},
    {0.2, 8, 1362, 359, 1080, 282, 93, 145}, {0.5, 1, 181, 181, 94, 87, 8, 11},
    {0.5, 2, 361, 292, 183, 178, 21, 18},    {0.5, 3, 524, 336, 266, 258, 46, 30},
    {0.5, 4, 699, 357, 352, 347, 57, 44},    {0.5, 8, 1410, 395, 709, 701, 110, 80},
    {0.8, 1, 189, 189, 95, 94, 6, 5},        {0.8, 2, 376, 341, 189, 187, 18, 6},
    {0.8, 3, 551, 374, 276, 275, 39, 10},    {0.8, 4, 739, 397, 370, 369, 48, 13},
    {0.8, 8, 1481, 400, 741, 740, 89, 30},   {1.0, 1, 193, 193, 97, 96, 7, 0},
    {1.0, 2, 385, 385, 193, 192, 15, 0},     {1.0, 3, 567, 398, 284, 283, 33, 0},
    {1.0, 4, 761, 400, 381, 380, 39, 0},     {1.0, 8, 1511, 400, 756, 755, 89, 0},
};

TEST(RunHogwild, GivesTheWholeGrid) {
  for (const GridCell& cell : kGrid) {
    SCOPED_TRACE(testing::Message() << "N=" << cell.workers << " w=" << cell.coordination);
    const HogwildResult result = Hogwild(cell.workers, cell.coordination);
    EXPECT_EQ(result.tokens, 200 * cell.workers);
    EXPECT_EQ(result.work_tokens, cell.work);
    EXPECT_EQ(result.progress, cell.progress);
    EXPECT_EQ(result.work_a, cell.a);
    EXPECT_EQ(result.work_b, cell.b);
    EXPECT_EQ(result.noise, cell.noise);
    EXPECT_EQ(result.coordination, cell.talk);
  }
}

TEST(RunHogwild, GivesThePrintedRatios) {
  const HogwildResult one = Hogwild(1, 0.8);
  const HogwildResult two = Hogwild(2, 0.8);

  EXPECT_NEAR(one.progress_per_step(), 0.94, 0.005 + 1e-9);
  EXPECT_DOUBLE_EQ(two.tokens_per_step(), 2.00);
  EXPECT_DOUBLE_EQ(two.work_per_step(), 1.88);
  EXPECT_NEAR(two.progress_per_step(), 1.71, 0.005 + 1e-9);
  EXPECT_NEAR(double{1} * two.progress / one.progress, 1.804233, 5e-7);
  EXPECT_NEAR(double{1} * two.work_tokens / one.work_tokens, 1.989, 5e-4);
}

// The published sweep divides by one run of N=1 at w=0.8 whatever w is.
TEST(RunHogwild, GivesTheCoordinationSweep) {
  const double weights[] = {0.0, 0.2, 0.5, 0.8, 1.0};
  const int progress[] = {197, 238, 292, 341, 385};
  const int stale[] = {197, 238, 276, 239, 199};
  const double printed[] = {1.04, 1.26, 1.54, 1.80, 2.04};
  const int single[] = {171, 169, 181, 189, 193};
  const double at_equal_weight[] = {1.15, 1.41, 1.61, 1.80, 1.99};
  for (int i = 0; i < 5; ++i) {
    const int two = Hogwild(2, weights[i]).progress;
    const int one = Hogwild(1, weights[i]).progress;
    EXPECT_EQ(two, progress[i]) << weights[i];
    EXPECT_EQ(one, single[i]) << weights[i];
    EXPECT_NEAR(two / 189.0, printed[i], 0.005) << weights[i];
    EXPECT_NEAR(double{1} * two / one, at_equal_weight[i], 0.005) << weights[i];
    EXPECT_EQ(Hogwild(2, weights[i], HogwildView::kStale).progress, stale[i]) << weights[i];
  }
}

TEST(RunHogwild, GivesTheMeanOfAThousandSeeds) {
  const double weights[] = {0.0, 0.2, 0.5, 0.8, 1.0};
  const double means[] = {195.8, 248.6, 285.2, 339.8, 379.8};
  const double deviations[] = {2.1, 6.7, 8.3, 8.5, 4.5};
  for (int i = 0; i < 5; ++i) {
    std::vector<double> progress;
    for (std::uint64_t run = 0; run < 1000; ++run) {
      // Every second seed: the second worker uses the one in between.
      progress.push_back(
          RunHogwild({.workers = 2, .coordination = weights[i], .seed = 2 * run})->progress);
    }
    const double mean = std::accumulate(progress.begin(), progress.end(), 0.0) / 1000;
    double squares = 0;
    for (const double value : progress) {
      squares += (value - mean) * (value - mean);
    }
    EXPECT_NEAR(mean, means[i], 0.0501) << weights[i];
    EXPECT_NEAR(std::sqrt(squares / 1000), deviations[i], 0.0501) << weights[i];
  }
}

TEST(RunHogwild, AgreesWithItsClosedForms) {
  EXPECT_NEAR(ExpectedHogwildProgress({.workers = 1, .coordination = 0.8}), 186.2, 1e-9);
  EXPECT_NEAR(ExpectedHogwildProgress({.workers = 2, .coordination = 0}), 200 * (1 - 0.145 * 0.145),
              1e-9);
  EXPECT_NEAR(ExpectedHogwildProgress({.workers = 2, .coordination = 0}), 195.8, 0.05);
  EXPECT_NEAR(ExpectedHogwildProgress({.workers = 2, .coordination = 1}), 380, 1e-9);
  for (const double weight : {0.0, 0.3, 1.0}) {
    double sum = 0;
    for (std::uint64_t run = 0; run < 500; ++run) {
      sum += RunHogwild({.workers = 1, .coordination = weight, .seed = run})->progress;
    }
    // Five standard errors of a mean of 500 runs of 200 draws.
    EXPECT_NEAR(sum / 500, ExpectedHogwildProgress({.workers = 1, .coordination = weight}), 1.6);
  }
}

TEST(RunHogwild, TracesTheFirstTokens) {
  const auto text = [](const HogwildResult& result) {
    std::string out;
    for (const HogwildTraceEntry& entry : result.trace) {
      out += std::to_string(entry.worker) + ":" + "AB*c"[static_cast<int>(entry.token)] + " ";
    }
    return out;
  };

  EXPECT_EQ(text(Hogwild(1, 0.8)), "0:A 0:B 0:A 0:B 0:A 0:B 0:* 0:A 0:B 0:c 0:A 0:B ");
  EXPECT_EQ(text(Hogwild(2, 0.8)), "0:A 1:* 0:B 1:A 0:B 1:A 0:B 1:A 0:B 1:A 0:B 1:A ");
}

TEST(RunHogwild, MarksWhatMakesNoProgress) {
  for (const HogwildTraceEntry& entry : Hogwild(3, 0).trace) {
    const bool first_work = entry.token == HogwildToken::kWorkA && !entry.redundant;
    EXPECT_TRUE(first_work || entry.redundant);
  }
  EXPECT_TRUE(Hogwild(2, 0.8).trace[1].redundant) << "noise";
}

TEST(RunHogwild, NeverPassesTwoKindsOfWorkAStep) {
  for (const int workers : {1, 2, 5, 64}) {
    for (const auto view : {HogwildView::kImmediate, HogwildView::kStale}) {
      for (const double weight : {0.0, 0.4, 1.0}) {
        const HogwildResult result = Hogwild(workers, weight, view);
        EXPECT_LE(result.progress, std::min(2, workers) * result.steps);
        EXPECT_LE(result.progress, result.work_tokens);
        EXPECT_EQ(result.tokens, workers * result.steps);
      }
    }
  }
}

TEST(RunHogwild, NamesTheFieldThatIsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto problem = [](const HogwildConfig& config) {
    return std::string(RunHogwild(config).status().message());
  };
  EXPECT_THAT(problem({.workers = 0}), HasSubstr("workers"));
  EXPECT_THAT(problem({.workers = 2'000'000'000}), HasSubstr("workers"));
  EXPECT_THAT(problem({.steps = 0}), HasSubstr("steps"));
  EXPECT_THAT(problem({.steps = -4}), HasSubstr("steps"));
  EXPECT_THAT(problem({.coordination = nan}), HasSubstr("coordination"));
  EXPECT_THAT(problem({.coordination = 1.01}), HasSubstr("coordination"));
  EXPECT_THAT(problem({.noise = -0.1}), HasSubstr("noise"));
  EXPECT_THAT(problem({.coordination_talk = nan}), HasSubstr("coordination_talk"));
}

// S = T / (T ((1 - p) + p / N) + c N), to the six digits of the reference.
struct SpeedupRow {
  HogwildTask task;
  double two;
  double four;
  double eight;
  int best;  // 0: not given
  double best_speedup;
};

const SpeedupRow kSpeedups[] = {
    {{10000, 0.3, 200}, 1.123596, 1.169591, 1.114206, 0, 0},
    {{10000, 0.5, 200}, 1.265823, 1.418440, 1.384083, 0, 0},
    {{10000, 0.7, 200}, 1.449275, 1.801802, 1.826484, 0, 0},
    {{10000, 0.9, 200}, 1.694915, 2.469136, 2.684564, 0, 0},
    {{1000, 0.1, 150}, 0.800000, 0.655738, 0.473373, 0, 0},
    {{1000, 0.3, 150}, 0.869565, 0.727273, 0.516129, 0, 0},
    {{1000, 0.5, 150}, 0.952381, 0.816327, 0.567376, 0, 0},
    {{50000, 0.8, 500}, 1.612903, 2.272727, 2.631579, 9, 2.639},
    {{1000, 0.3, 200}, 0.800000, 0.634921, 0.427807, 1, 0},
    {{50000, 0.7, 200}, 1.519757, 2.036660, 2.383790, 13, 2.464},
};

TEST(ExpectedSpeedup, GivesTheWholeTable) {
  for (const SpeedupRow& row : kSpeedups) {
    EXPECT_NEAR(ExpectedSpeedup(row.task, 2), row.two, 5e-7);
    EXPECT_NEAR(ExpectedSpeedup(row.task, 4), row.four, 5e-7);
    EXPECT_NEAR(ExpectedSpeedup(row.task, 8), row.eight, 5e-7);
    if (row.best > 0) {
      EXPECT_EQ(BestWorkers(row.task), row.best);
    }
    if (row.best_speedup > 0) {
      EXPECT_NEAR(ExpectedSpeedup(row.task, row.best), row.best_speedup, 5e-4);
    }
  }
}

TEST(ExpectedSpeedup, GivesTheHeadlineInSteps) {
  EXPECT_NEAR(10000 / ExpectedSpeedup({10000, 0.7, 200}, 4), 5550, 1e-9);
}

TEST(ExpectedSpeedup, IsBelowOneForOneWorkerThatPaysForCoordination) {
  EXPECT_LT(ExpectedSpeedup({10000, 0.7, 200}, 1), 1);
  EXPECT_EQ(ExpectedSpeedup({10000, 0.7, 0}, 1), 1);
}

TEST(ExpectedSpeedup, BreaksEvenWhereTheClosedFormSays) {
  EXPECT_NEAR(BreakEvenSerialSteps({10000, 0.7, 200}, 4), 1523.8, 0.05);
  for (const double parallel : {0.1, 0.5, 0.9}) {
    for (const double overhead : {10.0, 200.0, 5000.0}) {
      for (const int workers : {2, 3, 4, 8, 100}) {
        HogwildTask task = {1, parallel, overhead};
        const double edge = BreakEvenSerialSteps(task, workers);
        task.serial_steps = edge;
        EXPECT_NEAR(ExpectedSpeedup(task, workers), 1, 1e-9);
        task.serial_steps = edge * 1.01;
        EXPECT_GT(ExpectedSpeedup(task, workers), 1);
        task.serial_steps = edge * 0.99;
        EXPECT_LT(ExpectedSpeedup(task, workers), 1);
      }
    }
  }
  EXPECT_TRUE(std::isinf(BreakEvenSerialSteps({10000, 0.7, 200}, 1)));
  EXPECT_TRUE(std::isinf(BreakEvenSerialSteps({10000, 0, 200}, 4)));
}

TEST(ExpectedSpeedup, IsBestNextToTheClosedFormAndUnderItsCeiling) {
  for (const double parallel : {0.2, 0.7, 1.0}) {
    for (const double overhead : {5.0, 50.0, 400.0}) {
      const HogwildTask task = {20000, parallel, overhead};
      EXPECT_LE(std::abs(BestWorkers(task) - BestWorkersClosedForm(task)), 1);
      EXPECT_LT(ExpectedSpeedup(task, BestWorkers(task)), 1 / (1 - parallel));
    }
  }
  EXPECT_TRUE(std::isinf(BestWorkersClosedForm({1000, 0.7, 0})));
}

TEST(ExpectedSpeedup, GrowsWithLengthAndShareAndFallsWithOverhead) {
  for (const int workers : {2, 4, 9}) {
    double last = 0;
    for (const double length : {100.0, 1000.0, 10'000.0, 1e6}) {
      const double speedup = ExpectedSpeedup({length, 0.6, 200}, workers);
      EXPECT_GT(speedup, last);
      last = speedup;
    }
    last = 0;
    for (const double parallel : {0.0, 0.2, 0.6, 1.0}) {
      const double speedup = ExpectedSpeedup({5000, parallel, 200}, workers);
      EXPECT_GT(speedup, last);
      last = speedup;
    }
    last = 1e9;
    for (const double overhead : {0.0, 10.0, 1000.0}) {
      const double speedup = ExpectedSpeedup({5000, 0.6, overhead}, workers);
      EXPECT_LT(speedup, last);
      last = speedup;
    }
  }
}

TEST(HogwildTask, NamesTheFieldThatIsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(std::string(ValidateHogwildTask({0, 0.5, 1}).message()), HasSubstr("serial_steps"));
  EXPECT_THAT(std::string(ValidateHogwildTask({nan, 0.5, 1}).message()), HasSubstr("serial_steps"));
  EXPECT_THAT(std::string(ValidateHogwildTask({10, 1.5, 1}).message()), HasSubstr("parallel"));
  EXPECT_THAT(std::string(ValidateHogwildTask({10, 0.5, -1}).message()),
              HasSubstr("overhead_steps"));
  EXPECT_TRUE(ValidateHogwildTask({10, 0, 0}).ok());
}

}  // namespace
}  // namespace baton
