#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "baton/v1/worker.pb.h"
#include "planner/cost_model.h"
#include "router/tier_loads.h"

namespace baton {

// The cost model of workers of which nothing was measured yet: round figures whose ratios decide,
// not their sizes. Lives for the whole program.
std::shared_ptr<const CostModel> NominalCosts();

// What a worker's work takes, as far as anybody knows.
struct WorkerCosts {
  std::shared_ptr<const CostModel> model;  // never null
  std::optional<TransportRate> transport;  // of handoffs in this fleet; absent: none was timed
  PerTier<TransportRate> tiers = NominalTierRates();  // of loads out of them
};

// A worker whose own rates differ from the fleet's by less than this factor is taken to be like the
// others: what is measured on a busy machine moves that much.
inline constexpr double kAlike = 1.5;

struct FittedCosts {
  WorkerCosts fleet;              // of a worker of which nothing else is known
  std::vector<WorkerCosts> each;  // in the order of the workers
};

// The costs of the whole fleet (router/measured_rates.h), and those of each worker: the fleet's, or
// its own where they are clearly others, filled up from the fleet's where it has none. Rates of
// tiers are always its own where it has some: machines have their own disks. Pure.
FittedCosts FitWorkerCosts(std::span<const v1::WorkerDescription> workers);

// What the rates of the whole fleet say.
struct FleetRates {
  // See FindCrossover. FAILED_PRECONDITION until enough was measured.
  absl::StatusOr<std::optional<std::uint32_t>> crossover =
      absl::FailedPreconditionError("no worker was asked yet");
  std::optional<v1::Rates> rates;  // absent until enough was measured
};
FleetRates RatesOfAll(std::span<const v1::WorkerDescription> workers);

}  // namespace baton
