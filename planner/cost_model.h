#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/rates.h"

namespace baton {

// What one worker is busy with when a request is to be placed.
struct WorkerLoad {
  double queued_prefill_tokens = 0;  // uncached prompt tokens that will be computed first
  double running_sequences = 0;      // below max_batch_tokens
  double depth_tokens = 0;           // mean context of these
};

// A prompt on a worker that holds the first `cached_tokens` of it.
struct PromptTokens {
  double tokens = 0;
  double cached_tokens = 0;

  double uncached() const { return tokens > cached_tokens ? tokens - cached_tokens : 0; }
};

// A prediction, part by part. All parts are at least 0.
struct FirstTokenTime {
  double queue_seconds = 0;    // prompts that are computed first
  double prefill_seconds = 0;  // of this prompt alone
  double shared_seconds = 0;   // steps of running sequences that its prefill shares the worker with
  double fixed_seconds = 0;    // of the transfer
  // From the first token to all blocks landed: the second token waits for it, the first does not.
  double exposed_seconds = 0;
  // Time that sequences which run on the same worker stand still because of it, added up.
  double stall_seconds = 0;

  double first_token_seconds() const {
    return queue_seconds + prefill_seconds + shared_seconds + fixed_seconds;
  }
  // When decoding can go on: what paths are compared by.
  double decoding_seconds() const { return first_token_seconds() + exposed_seconds; }
};

// The time a worker takes for prompts, steps and transfers, from measured rates.
//
// Curves with coefficients of at least 0 are fitted to the rates, so that times are never negative
// and never fall when a prompt, batch or context grows:
//   prefill(L) = a + b L + c L^2            decode step(B, D) = w + B (s + k D)
//
// Immutable after construction; a prediction is a few multiplications and allocates nothing.
class CostModel {
 public:
  // INVALID_ARGUMENT naming the field when the rates are not valid.
  static absl::StatusOr<CostModel> Fit(MeasuredRates rates);

  // A prompt alone on the worker, none or all of it cached: 0 when nothing is left to compute.
  double PrefillSeconds(const PromptTokens& prompt) const;
  double PrefillSeconds(double tokens) const { return PrefillSeconds(PromptTokens{tokens}); }
  double DecodeStepSeconds(double batch, double depth_tokens) const;
  // Whole blocks; the fixed part counts even for one.
  double TransferSeconds(const TransportRate& transport, double tokens) const;
  // What is left of a transfer, without its fixed part, when prefill is over: pieces fly while
  // later layers and chunks still compute.
  double ExposedTransferSeconds(const TransportRate& transport,
                                double tokens,
                                double prefill_seconds,
                                double chunks) const;
  // What running sequences add to a step that computes a chunk of a prompt.
  double SharedStepSeconds(double running_sequences, double depth_tokens) const;
  // Steps that a prefill takes beside running sequences.
  double PrefillChunks(double tokens, double running_sequences) const;

  // One worker does everything.
  FirstTokenTime PredictColocated(const PromptTokens& prompt, const WorkerLoad& load) const;

  const MeasuredRates& rates() const { return rates_; }
  // {a, b, c} and {w, s, k}, in seconds.
  const std::array<double, 3>& prefill_coefficients() const { return prefill_; }
  const std::array<double, 3>& decode_coefficients() const { return decode_; }

 private:
  explicit CostModel(MeasuredRates rates);

  MeasuredRates rates_;
  std::array<double, 3> prefill_;
  std::array<double, 3> decode_;
};

// A prompt that one worker computes and another decodes. Borrows everything.
struct SplitPlan {
  const CostModel& prefill_worker;
  const WorkerLoad& prefill_load;
  const TransportRate& transport;
};

// `on_prefill` and `on_decode` are the same prompt, with what each worker has cached: the first
// decides what is computed, the second what is transferred.
FirstTokenTime PredictDisaggregated(const SplitPlan& plan,
                                    const PromptTokens& on_prefill,
                                    const PromptTokens& on_decode);

// How far a model is from what it was made of, or from requests that were timed.
struct ModelError {
  std::string what;  // "prefill 512", "disaggregated tcp 2048, 4 running"
  double measured_seconds = 0;
  double predicted_seconds = 0;

  double relative() const { return predicted_seconds / measured_seconds - 1; }
};
std::vector<ModelError> FitErrors(const CostModel& model);
// Time to first token of rates().measured; both workers are taken to be of the model's kind.
std::vector<ModelError> RequestErrors(const CostModel& model);
// Median of |relative()|; nullopt of none.
std::optional<double> MedianError(const std::vector<ModelError>& errors);

}  // namespace baton
