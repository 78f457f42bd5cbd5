#pragma once

#include <string>

#include "common/strong_id.h"
#include "model/tokenizer.h"

namespace baton {

// Turns one sequence's tokens into text piece by piece. What Append and Flush return is always
// valid UTF-8, and all of it together equals the text of the whole sequence decoded at once,
// malformed bytes replaced by U+FFFD.
//
// Not thread-safe: one per sequence.
class IncrementalDetokenizer {
 public:
  enum class ControlTokens { kSkip, kKeep };

  // `tokenizer` must outlive the detokenizer.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer,
                                  ControlTokens control = ControlTokens::kSkip);

  // The text that `id` completes; empty while a character is still open. REQUIRES: id < vocabulary.
  std::string Append(TokenId id);

  // What is left when the sequence ends: U+FFFD for a character that never became complete, else
  // nothing.
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  const ControlTokens control_;
  std::string pending_;  // the beginning of one character, at most three bytes
};

}  // namespace baton
