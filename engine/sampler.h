#pragma once

#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/sequence.h"
#include "kernels/ops.h"

namespace baton {

// What one row of logits is wanted for.
struct SampleRow {
  const SequenceRequest* request = nullptr;
  std::span<const TokenId> history;  // prompt, then output so far
  // A token of the prompt, of which only the log probability is wanted; absent: one is chosen.
  std::optional<TokenId> forced;
};

struct Sample {
  absl::Status status;
  SelectedToken token;
};

// A token for each row of `logits` [R, V]; `rows` is [R]. A row that cannot be sampled fails by
// itself.
std::vector<Sample> SampleRows(Backend& backend,
                               TensorView<const float> logits,
                               std::span<const SampleRow> rows);

}  // namespace baton
