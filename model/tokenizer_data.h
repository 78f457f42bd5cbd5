#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/strong_id.h"

namespace baton {

enum class TokenKind {
  kNormal,       // written in the byte-level alphabet, reached by merging
  kControl,      // recognised in text only when asked for; gives no text
  kUserDefined,  // recognised in every text, before anything else
  kUnused,       // an id that no text gives
};

// How text is cut into pieces before merging; no merge crosses a cut.
enum class PreTokenizerKind {
  kGpt2,             // the GPT-2 pattern
  kGpt2SplitDigits,  // every numeric character alone, then the GPT-2 pattern on what lies between
};

struct TokenEntry {
  std::string
      text;  // as the file writes it: byte-level alphabet for kNormal, plain UTF-8 for the others
  TokenKind kind = TokenKind::kUnused;
};

// What a file says about its tokenizer, before Tokenizer::Create has checked it.
struct TokenizerData {
  std::vector<TokenEntry> tokens;                           // by id
  std::vector<std::pair<std::string, std::string>> merges;  // first merges go first
  PreTokenizerKind pre_tokenizer = PreTokenizerKind::kGpt2;
  TokenId bos;
  TokenId eos;
  std::vector<TokenId> more_ends;  // ends of a sequence beside `eos`
  std::optional<TokenId> unknown;  // stands for a byte without a token
};

}  // namespace baton
