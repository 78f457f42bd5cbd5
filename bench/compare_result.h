#pragma once

#include <array>
#include <string>
#include <vector>

#include "bench/compare_plan.h"
#include "bench/load_request.h"
#include "planner/cost_model.h"

namespace baton {

// What a comparison has measured. Plain values, no thread rule.

// Ways to use the same two cores.
enum class SetUp {
  kColocated,      // two decode workers, each prefills its own prompts
  kDisaggregated,  // a prefill and a decode worker, every request on both
  kConditional,    // the same, by the router's own rule
};
inline constexpr std::array<SetUp, 3> kSetUps = {SetUp::kColocated, SetUp::kDisaggregated,
                                                 SetUp::kConditional};
std::string SetUpName(SetUp set_up);

struct RatePoint {
  double rate = 0;            // requests a second
  std::vector<LoadRun> runs;  // repeats
};

struct SetUpRuns {
  SetUp set_up = SetUp::kColocated;
  int max_batch_tokens = 256;
  std::vector<RatePoint> points;  // rates rise
};

struct WorkloadRuns {
  ComparedWorkload workload;
  std::vector<SetUpRuns> set_ups;  // in the order of kSetUps
  std::vector<SetUpRuns> chunks;   // colocated, at the reference rate alone
};

// Streams that run while a prompt of 2,048 tokens comes every five seconds.
struct RunningChat {
  std::vector<LoadRun> undisturbed;    // one stream on the decode worker, no prompts
  std::vector<LoadRun> disaggregated;  // the same stream, with the prompts
  std::vector<LoadRun> colocated;      // two workers with a stream each, with the prompts
};

// Time from the arrival of a request to its last token, on the same fleet by either path.
struct CrossoverCell {
  int prompt_tokens = 0;
  int output_tokens = 0;
  int running = 0;  // streams on the decode worker meanwhile
  double colocated_seconds = 0;
  double disaggregated_seconds = 0;
  double predicted_colocated_seconds = 0;
  double predicted_disaggregated_seconds = 0;
};

struct Crossover {
  MeasuredRates rates;  // what the predictions are made from
  std::vector<CrossoverCell> cells;
};

struct CompareResult {
  std::string date;
  std::string machine;  // processor and number of cores
  std::string cores;    // which process was kept where
  std::string model;
  std::string transport;  // that KV blocks took
  // Processor time of the load generator and of the two routers, in cores, over the whole
  // comparison.
  double shared_cpu_cores = 0;
  bool quick = false;
  double seconds = 0;  // that the comparison took
  std::vector<WorkloadRuns> workloads;
  RunningChat chat;
  Crossover crossover;
};

}  // namespace baton
