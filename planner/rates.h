#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// What a worker was seen to do: the input of the measured mode. Plain values, no thread rule.
// planner/README.md has the file format, with the same names.

struct PrefillRate {
  double prompt_tokens = 0;      // of one prompt with nothing cached, on an idle worker
  double tokens_per_second = 0;  // prompt_tokens / time to its first token
};

struct DecodeStep {
  double batch = 0;         // sequences in the step
  double depth_tokens = 0;  // mean context of a sequence
  double step_seconds = 0;
};

// A way for KV blocks to another worker, or from another tier of memory.
struct TransportRate {
  std::string name;
  double fixed_seconds = 0;  // of every transfer, whatever its size: calls, set-up, acknowledgement
  double bytes_per_second = 0;
};

// A request that was timed, to compare the model with.
struct MeasuredRequest {
  bool disaggregated = false;
  std::string transport;         // disaggregated only; one of `transports`
  double prompt_tokens = 0;      // none of them cached
  double running_sequences = 0;  // on the decode worker meanwhile
  double depth_tokens = 0;       // of these
  double first_token_seconds = 0;
};

struct MeasuredRates {
  std::string source;  // what was measured, where, when; free text
  double block_tokens = 16;
  double kv_bytes_per_token = 0;
  double layers = 1;              // groups in which blocks fly while later layers still compute
  double max_batch_tokens = 256;  // rows of a step: prefill is cut into chunks of what is left
  std::optional<double> kv_pool_tokens;  // room of one decode worker; absent: without bound
  // Share of a step's fixed time, the reading of the weights, that running sequences cost a second
  // time in a step that computes a prefill chunk as well. 0: weights are read once for all rows.
  double fixed_share_in_prefill = 0;
  std::vector<PrefillRate> prefill;       // at least one; lengths rise
  std::vector<DecodeStep> decode;         // at least one; no batch and depth twice
  std::vector<TransportRate> transports;  // names differ
  std::vector<MeasuredRequest> measured;

  // INVALID_ARGUMENT naming the field, as "prefill[2].tokens_per_second": what is NaN, not
  // positive, absurdly large, empty, out of order, twice there, or names an unknown transport.
  absl::Status Validate() const;

  // nullptr when there is none of that name. Valid while this is not changed.
  const TransportRate* FindTransport(const std::string& name) const;
};

}  // namespace baton
