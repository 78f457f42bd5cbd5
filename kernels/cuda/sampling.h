#pragma once

#include <cstdint>

#include "kernels/cuda/launch_types.h"

// Choosing tokens on the device. Meaning and order of the steps: TokenSelection in
// kernels/select_tokens.h. All pointers are device memory.
namespace baton::cuda {

// What changes the logit of one token of one row; the host makes the list from history, bias and
// bans, each token once.
struct LogitEdit {
  int token = 0;
  int output_count = 0;  // times in the output part of the history
  float bias = 0;
  std::uint8_t in_history = 0;
  std::uint8_t banned = 0;
};

struct SamplingRow {
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  int top_k = 0;  // 0: off
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  int first_edit = 0;  // edits [first_edit, end_edit) of SamplingParams::edits
  int end_edit = 0;
  int forced = -1;
  int logprobs = -1;  // alternatives wanted; -1: no log probability
  std::uint64_t seed = 0;
  std::uint64_t position = 0;
};

enum class SamplingError : int { kNone = 0, kNotFinite = 1, kNoPossibleToken = 2 };

struct SamplingResult {
  int token = 0;
  float logprob = 0;
  SamplingError error = SamplingError::kNone;
};

struct SamplingParams {
  const float* logits = nullptr;  // [rows, V]
  std::int64_t logits_stride = 0;
  int vocabulary = 0;
  const SamplingRow* rows = nullptr;  // [row_count]
  const LogitEdit* edits = nullptr;
  int row_count = 0;
  int most_alternatives = 0;          // columns of the two arrays below
  SamplingResult* results = nullptr;  // [row_count]
  int* alternative_tokens = nullptr;  // [row_count, most_alternatives], most likely first
  float* alternative_logprobs = nullptr;
  float* scratch = nullptr;  // [row_count, V]
};

}  // namespace baton::cuda
