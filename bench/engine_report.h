#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/figure.h"
#include "bench/llama_cpp.h"
#include "bench/worker_probe.h"

namespace baton {

// One figure measured once: ours and the peer's, one after the other, with the machine's limits
// before and after.
struct FigureRound {
  Timing ours;
  std::optional<Timing> ours_long_steps;  // prompts in steps of kLongStepTokens
  Limits limits;                          // for the figure's number of threads
  double tile_flops_per_second = 0;  // by products of tiles, where the code path has them; else 0
  std::optional<PeerTiming> peer;
  std::optional<PeerTiming> peer_as_given;
};

inline constexpr int kLongStepTokens = 512;

struct FigureResult {
  Figure figure;
  Work work;
  std::vector<FigureRound> rounds;  // at least one
};

// What a run of engine-bench found.
struct EngineReport {
  std::string model;
  std::string isa;  // of the code path that was measured; empty: no figure was
  int max_batch_tokens = 0;
  double seconds = 0;  // that the run took
  bool has_peer = false;
  std::vector<FigureResult> results;
  std::vector<WorkerFootprint> worker;  // one of each round; empty when it was not measured
};

// The middle one; of an even number the mean of the two in the middle. REQUIRES: not empty.
double Median(std::vector<double> values);

// One object; its members are described in docs/engine-bench.md. Every figure is a median over the
// rounds.
nlohmann::ordered_json ToJson(const EngineReport& report);

// The same for people, a line for each figure.
std::string ToTable(const EngineReport& report);

}  // namespace baton
