#include "planner/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "planner/least_squares.h"

namespace baton {
namespace {

// One observation leaves only one term: tokens times a constant is what a rate means.
std::array<double, 3> FitPrefill(const std::vector<PrefillRate>& rates) {
  if (rates.size() == 1) {
    return {0, 1 / rates[0].tokens_per_second, 0};
  }
  std::vector<Observation> observations;
  for (const PrefillRate& rate : rates) {
    const double tokens = rate.prompt_tokens;
    observations.push_back({{1, tokens, tokens * tokens}, tokens / rate.tokens_per_second});
  }
  return FitNonNegative(observations);
}

std::array<double, 3> FitDecode(const std::vector<DecodeStep>& steps) {
  std::vector<Observation> observations;
  for (const DecodeStep& step : steps) {
    observations.push_back({{1, step.batch, step.batch * step.depth_tokens}, step.step_seconds});
  }
  return FitNonNegative(observations);
}

}  // namespace

CostModel::CostModel(MeasuredRates rates)
    : rates_(std::move(rates)),
      prefill_(FitPrefill(rates_.prefill)),
      decode_(FitDecode(rates_.decode)) {}

absl::StatusOr<CostModel> CostModel::Fit(MeasuredRates rates) {
  RETURN_IF_ERROR(rates.Validate());
  return CostModel(std::move(rates));
}

double CostModel::PrefillSeconds(const PromptTokens& prompt) const {
  const double uncached = prompt.uncached();
  if (uncached <= 0) {
    return 0;
  }
  // Attention of the new tokens sees the cached ones: the difference of two squares.
  const double cached = prompt.tokens - uncached;
  return prefill_[0] + uncached * (prefill_[1] + prefill_[2] * (prompt.tokens + cached));
}

double CostModel::DecodeStepSeconds(double batch, double depth_tokens) const {
  return decode_[0] + batch * (decode_[1] + decode_[2] * depth_tokens);
}

double CostModel::TransferSeconds(const TransportRate& transport, double tokens) const {
  const double blocks = std::ceil(tokens / rates_.block_tokens);
  return transport.fixed_seconds +
         blocks * rates_.block_tokens * rates_.kv_bytes_per_token / transport.bytes_per_second;
}

double CostModel::ExposedTransferSeconds(const TransportRate& transport,
                                         double tokens,
                                         double prefill_seconds,
                                         double chunks) const {
  const double transfer = TransferSeconds(transport, tokens) - transport.fixed_seconds;
  const double pieces = rates_.layers * std::max(1.0, chunks);
  // The last piece leaves when the prompt is computed; on a slow link the earlier ones still queue.
  return std::max(transfer / pieces, transfer + prefill_seconds / pieces - prefill_seconds);
}

double CostModel::SharedStepSeconds(double running_sequences, double depth_tokens) const {
  return DecodeStepSeconds(running_sequences, depth_tokens) -
         (1 - rates_.fixed_share_in_prefill) * decode_[0];
}

double CostModel::PrefillChunks(double tokens, double running_sequences) const {
  return std::ceil(tokens / std::max(1.0, rates_.max_batch_tokens - running_sequences));
}

FirstTokenTime CostModel::PredictColocated(const PromptTokens& prompt,
                                           const WorkerLoad& load) const {
  FirstTokenTime time;
  time.queue_seconds = PrefillSeconds(load.queued_prefill_tokens);
  time.prefill_seconds = PrefillSeconds(prompt);
  if (load.running_sequences > 0) {
    const double chunks =
        PrefillChunks(load.queued_prefill_tokens + prompt.uncached(), load.running_sequences);
    time.shared_seconds = chunks * SharedStepSeconds(load.running_sequences, load.depth_tokens);
    time.stall_seconds = load.running_sequences * time.prefill_seconds;
  }
  return time;
}

FirstTokenTime PredictDisaggregated(const SplitPlan& plan,
                                    const PromptTokens& on_prefill,
                                    const PromptTokens& on_decode) {
  const CostModel& model = plan.prefill_worker;
  FirstTokenTime time = model.PredictColocated(on_prefill, plan.prefill_load);
  time.fixed_seconds = plan.transport.fixed_seconds;
  time.exposed_seconds = model.ExposedTransferSeconds(
      plan.transport, on_decode.uncached(), time.prefill_seconds,
      model.PrefillChunks(on_prefill.uncached(), plan.prefill_load.running_sequences));
  return time;
}

std::vector<ModelError> FitErrors(const CostModel& model) {
  std::vector<ModelError> errors;
  for (const PrefillRate& rate : model.rates().prefill) {
    errors.push_back({absl::StrCat("prefill of ", rate.prompt_tokens),
                      rate.prompt_tokens / rate.tokens_per_second,
                      model.PrefillSeconds(rate.prompt_tokens)});
  }
  for (const DecodeStep& step : model.rates().decode) {
    errors.push_back({absl::StrCat("step of ", step.batch, " at depth ", step.depth_tokens),
                      step.step_seconds, model.DecodeStepSeconds(step.batch, step.depth_tokens)});
  }
  return errors;
}

std::vector<ModelError> RequestErrors(const CostModel& model) {
  std::vector<ModelError> errors;
  for (const MeasuredRequest& request : model.rates().measured) {
    const PromptTokens prompt{request.prompt_tokens};
    const WorkerLoad idle;
    const WorkerLoad busy{.running_sequences = request.running_sequences,
                          .depth_tokens = request.depth_tokens};
    FirstTokenTime time;
    if (request.disaggregated) {
      const TransportRate& transport = *model.rates().FindTransport(request.transport);
      time = PredictDisaggregated({model, idle, transport}, prompt, prompt);
    } else {
      time = model.PredictColocated(prompt, busy);
    }
    std::string what = absl::StrCat(
        request.disaggregated ? absl::StrCat("split by ", request.transport) : "colocated", ", ",
        request.prompt_tokens, " tokens, ", request.running_sequences, " running");
    errors.push_back({std::move(what), request.first_token_seconds, time.first_token_seconds()});
  }
  return errors;
}

std::optional<double> MedianError(const std::vector<ModelError>& errors) {
  if (errors.empty()) {
    return std::nullopt;
  }
  std::vector<double> sizes;
  for (const ModelError& error : errors) {
    sizes.push_back(std::abs(error.relative()));
  }
  std::sort(sizes.begin(), sizes.end());
  const std::size_t middle = sizes.size() / 2;
  return sizes.size() % 2 == 1 ? sizes[middle] : (sizes[middle - 1] + sizes[middle]) / 2;
}

}  // namespace baton
