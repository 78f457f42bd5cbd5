#include "bench/device_figures.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace baton {

absl::StatusOr<std::string> MeasureOnDevice(ChosenBackend chosen,
                                            std::span<const Figure> figures,
                                            const EngineRunnerOptions& options,
                                            int rounds,
                                            const Checkpoint& checkpoint) {
  const bool is_emulated = chosen.backend->name() == "emulated";
  std::string table =
      absl::StrCat(is_emulated ? "EMULATION, says nothing of speed: " : "on ", chosen.reason, "\n");
  ASSIGN_OR_RETURN(const std::unique_ptr<EngineRunner> runner,
                   EngineRunner::CreateOn(std::move(chosen.backend), options, checkpoint));
  for (const Figure& figure : figures) {
    std::vector<double> seconds;
    for (int round = 0; round < rounds; ++round) {
      ASSIGN_OR_RETURN(const Timing timing, runner->Measure(figure));
      seconds.push_back(timing.wall_seconds);
    }
    std::ranges::sort(seconds);
    const double median = seconds[seconds.size() / 2];
    absl::StrAppend(&table, is_emulated ? absl::StrFormat("%-14s ran: %.0f tokens\n", figure.name,
                                                          figure.tokens())
                                        : absl::StrFormat("%-14s %10.0f tokens/s\n", figure.name,
                                                          figure.tokens() / median));
  }
  return table;
}

}  // namespace baton
