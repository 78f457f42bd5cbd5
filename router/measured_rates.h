#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "baton/v1/worker.pb.h"
#include "planner/cost_model.h"
#include "planner/rates.h"
#include "router/tiered_index.h"

namespace baton {

// What a fleet was seen to do, from what its workers say of themselves; and what follows for the
// question whether a prompt is worth two workers.
//
// Pure functions; thread-safe. Whatever workers send, nothing here fails but by its status: numbers
// that no worker can have measured are left out.

// The workers' rates as those of one worker, which stands for all: medians over the workers, for
// each power of two of lengths, batches and depths. Workers of another KV layout than most are left
// out; of one worker alone these are its own rates. Transports may be missing.
//
// FAILED_PRECONDITION saying what is missing: workers, a prompt computed alone, a decode step.
absl::StatusOr<MeasuredRates> MergeRates(std::span<const v1::WorkerDescription> workers);

// [tier] the rate of loads out of it: medians over the workers that timed some; absent: none did.
PerTier<std::optional<TransportRate>> MergeTierRates(
    std::span<const v1::WorkerDescription> workers);

// The curves through these rates. Errors are those of MergeRates.
absl::StatusOr<CostModel> FitCosts(std::span<const v1::WorkerDescription> workers);

// How busy the workers of the fleet are, on average, for whom one more request comes.
struct FleetLoad {
  WorkerLoad decode;
  WorkerLoad prefill;
};
FleetLoad AverageLoad(std::span<const v1::WorkerDescription> workers);

// The least uncached length from which on every longer prompt is answered sooner by two workers, up
// to the model's context, at the fleet's average load; nullopt when there is none. Over the
// transport that most workers have used.
//
// FAILED_PRECONDITION saying what is missing: also a prefill or decode worker, a second length of
// prompt or kind of decode step, which a curve needs, or a transfer.
absl::StatusOr<std::optional<std::uint32_t>> FindCrossover(
    std::span<const v1::WorkerDescription> workers);

// As `baton status` shows it.
v1::Crossover DescribeCrossover(const absl::StatusOr<std::optional<std::uint32_t>>& crossover,
                                std::uint32_t configured_tokens,
                                bool in_use);
// The members of the rates file of baton-plan.
v1::Rates ToProto(const MeasuredRates& rates);

}  // namespace baton
