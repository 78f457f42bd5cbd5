#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/nucleus_sampler.h"
#include "kernels/select_tokens.h"

namespace baton {

// Chooses the next token of one row after another, as kernels/select_tokens.h says. Keeps scratch
// memory only.
//
// Not thread-safe: one selector for each thread.
class TokenSelector {
 public:
  explicit TokenSelector(const KernelTable& kernels) : kernels_(kernels) {}

  // `logits` is [vocabulary].
  absl::Status Select(const float* logits,
                      int vocabulary,
                      const TokenSelection& row,
                      SelectedToken& selected);

 private:
  // Logits of the row after penalties, bias and bans; `logits` itself when there are none.
  const float* Adjust(const float* logits, int vocabulary, const TokenSelection& row);
  void Penalize(const TokenSelection& row);

  int Draw(const float* logits, int vocabulary, float maximum, const TokenSelection& row);
  void Filter(const float* logits, int vocabulary, const TokenSelection& row);
  void ReportLogprobs(const float* logits,
                      int vocabulary,
                      float maximum,
                      const TokenSelection& row,
                      SelectedToken& selected);

  const KernelTable& kernels_;
  std::vector<float> adjusted_;  // [V]
  std::vector<float> weights_;   // [V] probabilities relative to the most likely token's
  std::vector<int> candidates_;  // token ids
  NucleusSampler nucleus_;
  std::vector<std::uint32_t> output_count_;  // [V] all zero between rows
  std::vector<std::uint8_t> seen_;           // [V] likewise
};

}  // namespace baton
