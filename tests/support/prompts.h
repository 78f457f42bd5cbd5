#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "baton/v1/completions.pb.h"

namespace baton {

using Tokens = std::vector<std::uint32_t>;

// Text of at least `bytes` bytes: sentences, lists and small functions with names and numbers that
// vary, so that what a model makes of one prompt differs from what it makes of another. The same
// seed gives the same text everywhere.
std::string VariedText(std::uint64_t seed, std::size_t bytes);

// `count` ids in [first, end), the same for the same seed everywhere.
Tokens RandomTokens(std::uint64_t seed, std::size_t count, std::uint32_t first, std::uint32_t end);

// Prompts for the tiny model: its byte and merge tokens.
Tokens TinyPrompt(std::uint64_t seed, std::size_t count);

// Greedy, and exactly `max_tokens` tokens: end of sequence does not end it.
v1::CompleteRequest GreedyRequest(const Tokens& prompt, std::uint32_t max_tokens, v1::Path path);

}  // namespace baton
