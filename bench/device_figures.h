#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "bench/engine_runner.h"
#include "bench/figure.h"
#include "kernels/backends.h"

namespace baton {

// Figures of the engine on a device, as a table: the median of `rounds` rounds. Without fractions
// of what the machine can do: those of a GPU are measured by tests/gpu/run.sh. Under emulation
// there are no rates at all, only that each figure ran.
absl::StatusOr<std::string> MeasureOnDevice(ChosenBackend chosen,
                                            std::span<const Figure> figures,
                                            const EngineRunnerOptions& options,
                                            int rounds,
                                            const Checkpoint& checkpoint);

}  // namespace baton
