#include "router/worker_costs.h"

#include <utility>

#include "common/check.h"
#include "router/measured_rates.h"

namespace baton {
namespace {

bool Alike(double a, double b) {
  return a <= kAlike * b && b <= kAlike * a;
}

// Compares what `own` was measured at; the curves agree elsewhere if they do there.
bool IsLikeFleet(const MeasuredRates& own, const CostModel& fleet) {
  for (const PrefillRate& rate : own.prefill) {
    if (!Alike(rate.prompt_tokens / rate.tokens_per_second,
               fleet.PrefillSeconds(rate.prompt_tokens))) {
      return false;
    }
  }
  for (const DecodeStep& step : own.decode) {
    if (!Alike(step.step_seconds, fleet.DecodeStepSeconds(step.batch, step.depth_tokens))) {
      return false;
    }
  }
  return true;
}

std::vector<PrefillRate> PrefillOf(const v1::WorkerDescription& worker) {
  std::vector<PrefillRate> rates;
  for (const v1::WorkerRates::PrefillRate& rate : worker.rates().prefill()) {
    rates.push_back(
        {.prompt_tokens = rate.prompt_tokens(), .tokens_per_second = rate.tokens_per_second()});
  }
  return rates;
}

std::vector<DecodeStep> DecodeOf(const v1::WorkerDescription& worker) {
  std::vector<DecodeStep> steps;
  for (const v1::WorkerRates::DecodeStep& step : worker.rates().decode()) {
    steps.push_back({.batch = step.batch(),
                     .depth_tokens = step.depth_tokens(),
                     .step_seconds = step.step_seconds()});
  }
  return steps;
}

std::shared_ptr<const CostModel> CostsOf(const v1::WorkerDescription& worker,
                                         const std::shared_ptr<const CostModel>& fleet) {
  MeasuredRates own = fleet->rates();
  own.prefill = PrefillOf(worker);
  own.decode = DecodeOf(worker);
  if (IsLikeFleet(own, *fleet)) {
    return fleet;
  }
  if (own.prefill.empty()) {
    own.prefill = fleet->rates().prefill;
  }
  if (own.decode.empty()) {
    own.decode = fleet->rates().decode;
  }
  absl::StatusOr<CostModel> model = CostModel::Fit(std::move(own));  // checks what the worker sent
  return model.ok() ? std::make_shared<const CostModel>(*std::move(model)) : fleet;
}

void TakeMeasured(const PerTier<std::optional<TransportRate>>& measured,
                  PerTier<TransportRate>& rates) {
  for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
    if (measured[tier].has_value()) {
      rates[tier] = *measured[tier];
    }
  }
}

}  // namespace

std::shared_ptr<const CostModel> NominalCosts() {
  static const auto* const costs = [] {
    MeasuredRates rates;
    rates.source = "nominal";
    rates.kv_bytes_per_token = 1 << 15;
    rates.layers = 32;
    rates.prefill = {{.prompt_tokens = 64, .tokens_per_second = 2000},
                     {.prompt_tokens = 512, .tokens_per_second = 3000},
                     {.prompt_tokens = 4096, .tokens_per_second = 2000}};
    rates.decode = {{.batch = 1, .depth_tokens = 512, .step_seconds = 0.02},
                    {.batch = 8, .depth_tokens = 512, .step_seconds = 0.03}};
    rates.transports = {{.name = "nominal", .fixed_seconds = 0.003, .bytes_per_second = 2e9}};
    absl::StatusOr<CostModel> model = CostModel::Fit(std::move(rates));
    BATON_CHECK(model.ok());
    return new std::shared_ptr<const CostModel>(
        std::make_shared<const CostModel>(*std::move(model)));
  }();
  return *costs;
}

FittedCosts FitWorkerCosts(std::span<const v1::WorkerDescription> workers) {
  FittedCosts costs{.fleet = {.model = NominalCosts()}};
  absl::StatusOr<CostModel> merged = FitCosts(workers);
  if (merged.ok()) {
    costs.fleet.model = std::make_shared<const CostModel>(*std::move(merged));
    const std::vector<TransportRate>& transports = costs.fleet.model->rates().transports;
    if (!transports.empty()) {
      costs.fleet.transport = transports.front();
    }
  }
  TakeMeasured(MergeTierRates(workers), costs.fleet.tiers);
  costs.each.assign(workers.size(), costs.fleet);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    TakeMeasured(MergeTierRates(workers.subspan(i, 1)), costs.each[i].tiers);
  }
  if (costs.fleet.model != NominalCosts()) {
    for (std::size_t i = 0; i < workers.size(); ++i) {
      costs.each[i].model = CostsOf(workers[i], costs.fleet.model);
    }
  }
  return costs;
}

FleetRates RatesOfAll(std::span<const v1::WorkerDescription> workers) {
  FleetRates all{.crossover = FindCrossover(workers)};
  if (const absl::StatusOr<MeasuredRates> rates = MergeRates(workers); rates.ok()) {
    all.rates = ToProto(*rates);
  }
  return all;
}

}  // namespace baton
