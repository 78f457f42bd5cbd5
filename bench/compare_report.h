#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/compare_result.h"
#include "bench/load_metrics.h"

namespace baton {

// The numbers and the sentence that a comparison comes down to. All pure; thread-safe.

// A value of each repeat.
struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};

// The highest rate at which 90% of the requests keep both limits, between two measured rates
// interpolated by the share that does.
struct Goodput {
  double requests_per_second = 0;
  bool below_lowest = false;  // fewer did at the lowest rate already: it is less than that rate
  bool at_highest = false;    // at least 90% still did at the highest rate: it may be higher
};

// What is known of a quotient of two goodputs, of which either may be known by a bound alone.
enum class Known { kExactly, kAtLeast, kAtMost, kNothing };

// One set-up under one workload: at the reference rate, but for goodput and the peak.
struct SideFigures {
  Spread ttft_p50_ms;
  Spread ttft_p99_ms;
  Spread itl_p50_ms;  // of the workload's streams
  Spread itl_p99_ms;
  Spread output_tokens_per_s;
  Goodput goodput;
  double peak_output_tokens_per_s = 0;  // the most at any rate
  double failed_share = 0;              // at the reference rate
};

SideFigures FiguresOf(const SetUpRuns& set_up, const ComparedWorkload& workload);
// Share of the requests of all repeats that keep both limits.
double GoodShare(const RatePoint& point, const ServiceLimits& limits);

// Above 1: in favour of `other` over the colocated side.
struct Ratios {
  double itl_p99 = 0;  // colocated / other, of the medians
  Spread itl_p99_by_repeat;
  double goodput = 0;  // other / colocated, of what is known of them
  Known goodput_known = Known::kExactly;
  double ttft_p50 = 0;         // colocated / other
  double peak_throughput = 0;  // other / colocated
};
Ratios CompareSides(const SetUpRuns& colocated,
                    const SetUpRuns& other,
                    const ComparedWorkload& workload);

// One sentence, losses included.
std::string Verdict(const CompareResult& result);

// `verdict` and `workloads`, and everything else that was measured; docs/benchmark.md has the
// members.
nlohmann::ordered_json CompareJson(const CompareResult& result);
// For a terminal; ends with a line feed.
std::string CompareTable(const CompareResult& result);

// Median |predicted / measured - 1| of the times of all cells; nullopt of none.
std::optional<double> CrossoverError(const Crossover& crossover);
// The least prompt length of the cells from which every longer one is quicker split; nullopt when
// the longest is not. The second is what the predictions of the same cells say.
struct BreakEven {
  int output_tokens = 0;
  int running = 0;
  std::optional<int> measured;
  std::optional<int> predicted;
};
// One for each output length and number of running streams, in the order of the cells.
std::vector<BreakEven> BreakEvensOf(const Crossover& crossover);

// For each of these a sentence: where splitting begins to be quicker, and how many prompts of each
// workload are on that side. Those where it never is share one for each number of running streams.
std::vector<std::string> SidesOfCrossover(const CompareResult& result);

// What the running chat came to, in milliseconds: medians over the repeats.
struct ChatFigures {
  double undisturbed_p99_ms = 0;
  double disaggregated_p99_ms = 0;
  double disaggregated_stall_ms = 0;  // the longest of each repeat
  double colocated_p99_ms = 0;
  double colocated_stall_ms = 0;
};
ChatFigures FiguresOf(const RunningChat& chat);

}  // namespace baton
