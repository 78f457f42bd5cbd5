#include "router/measured_rates.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "planner/break_even.h"
#include "router/tier_loads.h"

namespace baton {
namespace {

constexpr double kMostTokens = 1e9;
constexpr double kMostBatch = 1e6;
constexpr double kMostSeconds = 1e6;
constexpr double kMostRate = 1e18;
constexpr std::size_t kMostNameBytes = 64;
constexpr std::size_t kMostTransports = 16;
constexpr std::uint32_t kMostCrossoverTokens = 32'768;

// Written so that NaN is not within.
bool Within(double value, double low, double high) {
  return value >= low && value <= high;
}
bool IsRate(double value) {
  return value > 0 && value <= kMostRate;
}

double Median(std::vector<double> values) {
  const std::size_t half = values.size() / 2;
  std::ranges::sort(values);
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

int PowerOfTwo(double value) {
  return value < 1 ? -1 : std::ilogb(value);
}

// What makes numbers of two workers comparable.
using Kind = std::tuple<int, int, std::uint64_t>;  // layers, block tokens, bytes of a layer
Kind KindOf(const v1::WorkerDescription& worker) {
  const v1::EngineIdentity& identity = worker.identity();
  return {identity.layers(), identity.block_tokens(), identity.layer_bytes()};
}

// The workers of the commonest kind.
std::vector<const v1::WorkerDescription*> Comparable(
    std::span<const v1::WorkerDescription> workers) {
  std::map<Kind, std::vector<const v1::WorkerDescription*>> kinds;
  for (const v1::WorkerDescription& worker : workers) {
    const auto [layers, block_tokens, layer_bytes] = KindOf(worker);
    if (layers > 0 && block_tokens > 0 && layer_bytes > 0) {
      kinds[KindOf(worker)].push_back(&worker);
    }
  }
  const auto most =
      std::ranges::max_element(kinds, {}, [](const auto& kind) { return kind.second.size(); });
  return most == kinds.end() ? std::vector<const v1::WorkerDescription*>() : most->second;
}

using Workers = std::vector<const v1::WorkerDescription*>;

std::vector<PrefillRate> MergePrefill(const Workers& workers) {
  std::map<int, std::pair<std::vector<double>, std::vector<double>>> buckets;
  for (const v1::WorkerDescription* worker : workers) {
    for (const v1::WorkerRates::PrefillRate& rate : worker->rates().prefill()) {
      if (Within(rate.prompt_tokens(), 1, kMostTokens) && IsRate(rate.tokens_per_second())) {
        auto& [tokens, rates] = buckets[PowerOfTwo(rate.prompt_tokens())];
        tokens.push_back(rate.prompt_tokens());
        rates.push_back(rate.tokens_per_second());
      }
    }
  }
  std::vector<PrefillRate> merged;
  for (const auto& [bucket, values] : buckets) {
    merged.push_back(
        {.prompt_tokens = Median(values.first), .tokens_per_second = Median(values.second)});
  }
  return merged;
}

std::vector<DecodeStep> MergeDecode(const Workers& workers) {
  struct Values {
    std::vector<double> batch;
    std::vector<double> depth;
    std::vector<double> seconds;
  };
  std::map<std::pair<int, int>, Values> cells;
  for (const v1::WorkerDescription* worker : workers) {
    for (const v1::WorkerRates::DecodeStep& step : worker->rates().decode()) {
      if (Within(step.batch(), 1, kMostBatch) && Within(step.depth_tokens(), 0, kMostTokens) &&
          step.step_seconds() > 0 && step.step_seconds() <= kMostSeconds) {
        Values& values = cells[{PowerOfTwo(step.batch()), PowerOfTwo(step.depth_tokens())}];
        values.batch.push_back(step.batch());
        values.depth.push_back(step.depth_tokens());
        values.seconds.push_back(step.step_seconds());
      }
    }
  }
  std::vector<DecodeStep> merged;
  for (const auto& [cell, values] : cells) {
    merged.push_back({.batch = Median(values.batch),
                      .depth_tokens = Median(values.depth),
                      .step_seconds = Median(values.seconds)});
  }
  return merged;
}

// The one that most workers have used comes first; of these the quickest.
std::vector<TransportRate> MergeTransports(const Workers& workers) {
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> names;
  for (const v1::WorkerDescription* worker : workers) {
    for (const v1::WorkerRates::TransportRate& rate : worker->rates().transports()) {
      const bool sound = !rate.name().empty() && rate.name().size() <= kMostNameBytes &&
                         Within(rate.fixed_seconds(), 0, kMostSeconds) &&
                         IsRate(rate.bytes_per_second());
      if (sound && (names.contains(rate.name()) || names.size() < kMostTransports)) {
        auto& [fixed, rates] = names[rate.name()];
        fixed.push_back(rate.fixed_seconds());
        rates.push_back(rate.bytes_per_second());
      }
    }
  }
  std::vector<std::pair<std::size_t, TransportRate>> merged;
  for (const auto& [name, values] : names) {
    merged.emplace_back(values.second.size(),
                        TransportRate{.name = name,
                                      .fixed_seconds = Median(values.first),
                                      .bytes_per_second = Median(values.second)});
  }
  std::ranges::sort(merged, std::greater(), [](const auto& entry) {
    return std::pair(entry.first, entry.second.bytes_per_second);
  });
  std::vector<TransportRate> rates;
  for (auto& [workers_of, rate] : merged) {
    rates.push_back(std::move(rate));
  }
  return rates;
}

int CountOf(std::span<const v1::WorkerDescription> workers, v1::Role role) {
  return static_cast<int>(std::ranges::count(workers, role, &v1::WorkerDescription::role));
}

// How far predictions are of use: the shortest context of any worker.
int MostTokens(std::span<const v1::WorkerDescription> workers) {
  std::uint32_t most = kMostCrossoverTokens;
  for (const v1::WorkerDescription& worker : workers) {
    if (worker.context_tokens() > 0) {
      most = std::min(most, worker.context_tokens());
    }
  }
  return static_cast<int>(most);
}

}  // namespace

absl::StatusOr<MeasuredRates> MergeRates(std::span<const v1::WorkerDescription> workers) {
  const Workers comparable = Comparable(workers);
  if (comparable.empty()) {
    return absl::FailedPreconditionError("there is no worker");
  }
  const auto [layers, block_tokens, layer_bytes] = KindOf(*comparable.front());
  std::vector<double> batch_tokens;
  for (const v1::WorkerDescription* worker : comparable) {
    if (worker->max_batch_tokens() > 0) {
      batch_tokens.push_back(worker->max_batch_tokens());
    }
  }
  MeasuredRates rates{
      .source = absl::StrCat("medians of ", comparable.size(), " workers"),
      .block_tokens = static_cast<double>(block_tokens),
      .kv_bytes_per_token = static_cast<double>(layer_bytes) * layers / block_tokens,
      .layers = static_cast<double>(layers),
      .prefill = MergePrefill(comparable),
      .decode = MergeDecode(comparable),
      .transports = MergeTransports(comparable)};
  if (!batch_tokens.empty()) {
    rates.max_batch_tokens = Median(std::move(batch_tokens));
  }
  if (rates.prefill.empty()) {
    return absl::FailedPreconditionError(
        "no worker has computed a prompt alone yet, with nothing of it cached");
  }
  if (rates.decode.empty()) {
    return absl::FailedPreconditionError("no worker has decoded yet");
  }
  if (const absl::Status status = rates.Validate(); !status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the workers' rates are refused: ", std::string(status.message())));
  }
  return rates;
}

PerTier<std::optional<TransportRate>> MergeTierRates(
    std::span<const v1::WorkerDescription> workers) {
  PerTier<std::pair<std::vector<double>, std::vector<double>>> timed;
  for (const v1::WorkerDescription& worker : workers) {
    for (const v1::WorkerRates::TierRate& rate : worker.rates().tiers()) {
      if (v1::KvTier_IsValid(rate.tier()) && rate.tier() != v1::KV_TIER_DEVICE &&
          Within(rate.fixed_seconds(), 0, kMostSeconds) && IsRate(rate.bytes_per_second())) {
        auto& [fixed, rates] = timed[rate.tier()];
        fixed.push_back(rate.fixed_seconds());
        rates.push_back(rate.bytes_per_second());
      }
    }
  }
  PerTier<std::optional<TransportRate>> merged;
  for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
    auto& [fixed, rates] = timed[tier];
    if (!rates.empty()) {
      merged[tier] = TransportRate{.name = NominalTierRates()[tier].name,
                                   .fixed_seconds = Median(std::move(fixed)),
                                   .bytes_per_second = Median(std::move(rates))};
    }
  }
  return merged;
}

absl::StatusOr<CostModel> FitCosts(std::span<const v1::WorkerDescription> workers) {
  ASSIGN_OR_RETURN(MeasuredRates rates, MergeRates(workers));
  absl::StatusOr<CostModel> model = CostModel::Fit(std::move(rates));
  if (!model.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the workers' rates are refused: ", std::string(model.status().message())));
  }
  return model;
}

FleetLoad AverageLoad(std::span<const v1::WorkerDescription> workers) {
  FleetLoad load;
  double decode_workers = 0;
  double prefill_workers = 0;
  double context_tokens = 0;
  for (const v1::WorkerDescription& worker : workers) {
    const v1::EngineLoad& of_worker = worker.load();
    if (worker.role() == v1::ROLE_DECODE) {
      ++decode_workers;
      load.decode.running_sequences += of_worker.decoding_sequences();
      load.decode.queued_prefill_tokens += static_cast<double>(of_worker.queued_prefill_tokens());
      context_tokens += static_cast<double>(of_worker.running_context_tokens());
    } else if (worker.role() == v1::ROLE_PREFILL) {
      ++prefill_workers;
      load.prefill.queued_prefill_tokens += static_cast<double>(of_worker.queued_prefill_tokens());
    }
  }
  if (load.decode.running_sequences > 0) {
    load.decode.depth_tokens = context_tokens / load.decode.running_sequences;
  }
  load.decode.running_sequences /= std::max(decode_workers, 1.0);
  load.decode.queued_prefill_tokens /= std::max(decode_workers, 1.0);
  load.prefill.queued_prefill_tokens /= std::max(prefill_workers, 1.0);
  return load;
}

absl::StatusOr<std::optional<std::uint32_t>> FindCrossover(
    std::span<const v1::WorkerDescription> workers) {
  if (CountOf(workers, v1::ROLE_DECODE) == 0 || CountOf(workers, v1::ROLE_PREFILL) == 0) {
    return absl::FailedPreconditionError(CountOf(workers, v1::ROLE_DECODE) == 0
                                             ? "there is no decode worker"
                                             : "there is no prefill worker");
  }
  ASSIGN_OR_RETURN(const CostModel model, FitCosts(workers));
  const MeasuredRates& rates = model.rates();
  if (rates.prefill.size() < 2) {
    return absl::FailedPreconditionError(
        "prompts of one length only have been computed alone: a curve needs two");
  }
  if (rates.decode.size() < 2) {
    return absl::FailedPreconditionError(
        "decode steps of one batch and depth only have been seen: a curve needs two");
  }
  if (rates.transports.empty()) {
    return absl::FailedPreconditionError("no KV blocks have travelled yet by a way that is timed");
  }
  FleetLoad load = AverageLoad(workers);
  // The model divides what is left of a step's rows among prompts.
  load.decode.running_sequences =
      std::min(load.decode.running_sequences, std::max(rates.max_batch_tokens - 1, 0.0));
  const std::optional<int> tokens = SplitBreakEvenTokens({.model = model,
                                                          .transport = rates.transports.front(),
                                                          .decode_load = load.decode,
                                                          .prefill_load = load.prefill},
                                                         MostTokens(workers));
  return tokens.has_value() ? std::optional(static_cast<std::uint32_t>(*tokens)) : std::nullopt;
}

v1::Crossover DescribeCrossover(const absl::StatusOr<std::optional<std::uint32_t>>& crossover,
                                std::uint32_t configured_tokens,
                                bool in_use) {
  v1::Crossover proto;
  proto.set_configured_tokens(configured_tokens);
  proto.set_in_use(in_use);
  proto.set_known(crossover.ok());
  if (!crossover.ok()) {
    proto.set_why_unknown(std::string(crossover.status().message()));
  } else if (crossover->has_value()) {
    proto.set_pays(true);
    proto.set_prompt_tokens(**crossover);
  }
  return proto;
}

v1::Rates ToProto(const MeasuredRates& rates) {
  v1::Rates proto;
  proto.set_version(1);
  proto.set_source(rates.source);
  proto.set_block_tokens(rates.block_tokens);
  proto.set_kv_bytes_per_token(rates.kv_bytes_per_token);
  proto.set_layers(rates.layers);
  proto.set_max_batch_tokens(rates.max_batch_tokens);
  for (const PrefillRate& rate : rates.prefill) {
    v1::WorkerRates::PrefillRate& entry = *proto.add_prefill();
    entry.set_prompt_tokens(rate.prompt_tokens);
    entry.set_tokens_per_second(rate.tokens_per_second);
  }
  for (const DecodeStep& step : rates.decode) {
    v1::WorkerRates::DecodeStep& entry = *proto.add_decode();
    entry.set_batch(step.batch);
    entry.set_depth_tokens(step.depth_tokens);
    entry.set_step_seconds(step.step_seconds);
  }
  for (const TransportRate& rate : rates.transports) {
    v1::WorkerRates::TransportRate& entry = *proto.add_transports();
    entry.set_name(rate.name);
    entry.set_fixed_seconds(rate.fixed_seconds);
    entry.set_bytes_per_second(rate.bytes_per_second);
  }
  return proto;
}

}  // namespace baton
