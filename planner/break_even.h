#pragma once

#include <optional>

#include "planner/cost_model.h"
#include "planner/hogwild.h"

namespace baton {

// Where, by measured rates, one way of serving a request becomes the quicker one. Pure;
// thread-safe.

// A request on an idle prefill worker or whole on a decode worker that has others running.
struct SplitQuestion {
  const CostModel& model;          // of both workers; borrowed
  const TransportRate& transport;  // borrowed
  WorkerLoad decode_load;          // where the request would run whole
  WorkerLoad prefill_load;         // where its prompt would be computed
  bool count_stalls = false;  // add what running sequences lose to what the request itself takes
};

// Seconds that a split saves; negative when it costs.
double SplitGainSeconds(const SplitQuestion& question, double prompt_tokens);

// The least whole prompt length, up to `most_tokens`, from which every longer one gains by a split;
// nullopt when the longest does not gain.
std::optional<int> SplitBreakEvenTokens(const SplitQuestion& question, int most_tokens = 32'768);

// Bytes per second of a tier or peer above which loading the KV cache of a prompt is quicker than
// computing it; nullopt when the fixed cost alone is more than computing.
std::optional<double> LoadBreakEvenBytesPerSecond(const CostModel& model,
                                                  double prompt_tokens,
                                                  double fixed_seconds);
// The least whole length from which loading is quicker at a transport's rates.
std::optional<int> LoadBreakEvenTokens(const CostModel& model,
                                       const TransportRate& transport,
                                       int most_tokens = 32'768);

// The least whole prompt length from which a worker in another region that has the prompt in its
// cache, all but `uncached_tokens`, answers sooner than computing at home.
std::optional<int> RegionBreakEvenTokens(const CostModel& model,
                                         double round_trip_seconds,
                                         double uncached_tokens,
                                         int most_tokens = 32'768);

// Link above which streaming hides all of a transfer but its last piece, at the steepest rate of
// prefill: KV bytes a token times tokens a second.
double HidingBytesPerSecond(const CostModel& model, double prompt_tokens);

// A shared-cache group: ExpectedSpeedup with the measured time of a step of N in place of equal
// steps. REQUIRES: a valid task, workers >= 1.
double MeasuredGroupSpeedup(const CostModel& model,
                            const HogwildTask& task,
                            double depth_tokens,
                            int workers);
int BestMeasuredWorkers(const CostModel& model,
                        const HogwildTask& task,
                        double depth_tokens,
                        int most = 256);

}  // namespace baton
