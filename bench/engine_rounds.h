#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/engine_report.h"
#include "bench/figure.h"
#include "bench/llama_cpp.h"
#include "common/clock.h"
#include "model/checkpoint.h"

namespace baton {

struct EngineRoundsOptions {
  std::vector<Figure> figures;
  std::string isa = "auto";
  int max_batch_tokens = 256;
  const LlamaCpp* peer = nullptr;  // borrowed; null: no comparison
  std::optional<WorkerProbeOptions> worker;
  // No round begins that would end later, but the first; when that takes much longer, its last
  // figures go without the peer.
  Duration time_limit{};
  int most_rounds = 5;
  std::function<void(const std::string& line)> progress;
};

// Measures all figures, round after round: in each round, and for each figure, the machine's
// limits, our engine, the peer, and the limits again, all on the same cores, which are chosen anew
// for each figure. A figure for which the peer
// takes longer than anything explains but a busy machine goes without it. INVALID_ARGUMENT when the
// model's context is too short for a figure.
absl::StatusOr<EngineReport> MeasureEngine(const EngineRoundsOptions& options,
                                           const Checkpoint& checkpoint);

}  // namespace baton
