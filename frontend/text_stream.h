#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/strong_id.h"
#include "frontend/stop_matcher.h"
#include "model/detokenizer.h"

namespace baton {

// The text of one sequence, piece by piece, up to a stop string.
//
// What has been given out never contains any part of the stop string that ends the text: the end of
// the text so far is held back as long as it may still become one, and no longer. Every piece is
// UTF-8; control tokens give no text. A stop string that ends before `min_tokens` tokens have come
// is ordinary text.
//
// Not thread-safe: one per sequence.
class TextStream {
 public:
  // `tokenizer` must outlive the stream.
  TextStream(const Tokenizer& tokenizer,
             const std::vector<std::string>& stop,
             std::uint32_t min_tokens);

  // The text that may be shown now. REQUIRES: !stopped().
  std::string Append(TokenId id);

  // The rest, when the sequence has ended without a stop string: what was held back, and U+FFFD for
  // half a character. A stop string that this completes counts. Call once, last. REQUIRES:
  // !stopped().
  std::string Finish();

  // A stop string has been met: the text given out by now is all there is.
  bool stopped() const { return !stop_match_.empty(); }
  const std::string& stop_match() const { return stop_match_; }

 private:
  std::string Take(std::string_view text);

  IncrementalDetokenizer detokenizer_;
  StopMatcher matcher_;
  const std::uint32_t min_tokens_;
  std::uint32_t tokens_ = 0;
  std::string held_back_;
  std::string stop_match_;
};

}  // namespace baton
