#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"

namespace baton {

// One request of a trace: when it came and how long it was; the text is never part of a trace.
struct TraceRequest {
  Duration arrival{};  // since the first request
  int prompt_tokens = 0;
  int output_tokens = 0;
  // One for every Trace::hashed_tokens of the prompt, the last one of what is left: equal ids mean
  // prompts that are equal up to there. Empty where the trace says nothing about prefixes.
  std::vector<std::uint64_t> hash_ids;
};

struct Trace {
  int hashed_tokens = 0;               // 0: without hash ids
  std::vector<TraceRequest> requests;  // by arrival
};

// Tokens that one hash id of a Mooncake trace stands for, as published.
inline constexpr int kMooncakeHashedTokens = 512;

// Both parsers divide lengths by `length_divisor` (at least 1) and round up. Dividing a Mooncake
// trace by 32 makes its hashed pieces blocks of 16 tokens. INVALID_ARGUMENT names `name` and the
// line: for a line that is malformed, a length of 0 or above 2^24, times that fall, a trace without
// requests. Pure; thread-safe.

// One JSON object a line: timestamp (ms), input_length, output_length, hash_ids. Other members are
// left alone. REQUIRES: `length_divisor` divides kMooncakeHashedTokens.
absl::StatusOr<Trace> ParseMooncakeTrace(const std::string& name,
                                         std::string_view text,
                                         int length_divisor);

// A line of column names, then TIMESTAMP ("2023-11-16 18:15:46.6805900", up to 9 decimals,
// "+00:00" may follow), ContextTokens, GeneratedTokens; lines end in LF or CR LF.
absl::StatusOr<Trace> ParseAzureTrace(const std::string& name,
                                      std::string_view text,
                                      int length_divisor);

// Azure for a name that ends in ".csv", else Mooncake. NOT_FOUND and the like name the path.
absl::StatusOr<Trace> ReadTraceFile(const std::string& path, int length_divisor);

// Which token ids prompts are made of: [first_token, first_token + tokens).
struct PromptVocabulary {
  std::uint32_t first_token = 0;
  std::uint32_t tokens = 0;  // at least 1
};
// Without the first hundred, among which models keep their control tokens (end of text, roles).
inline PromptVocabulary OrdinaryTokens(std::uint32_t vocabulary_size) {
  const std::uint32_t first = vocabulary_size > 200 ? 100 : 0;
  return {.first_token = first, .tokens = vocabulary_size - first};
}

// Token ids for a prompt of `request`: those of each hash id come from a generator seeded with it,
// so equal ids give equal tokens wherever they stand. With `pad_to_whole_blocks` the last piece is
// whole too. A request without hash ids gets tokens of its own from a generator seeded with
// `own_seed`. Pure; thread-safe.
std::vector<std::uint32_t> MakePromptTokens(const TraceRequest& request,
                                            int hashed_tokens,
                                            const PromptVocabulary& vocabulary,
                                            bool pad_to_whole_blocks,
                                            std::uint64_t own_seed);

}  // namespace baton
