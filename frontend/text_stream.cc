#include "frontend/text_stream.h"

#include <algorithm>

#include "common/utf8.h"

namespace baton {

TextStream::TextStream(const Tokenizer& tokenizer,
                       const std::vector<std::string>& stop,
                       std::uint32_t min_tokens)
    : detokenizer_(tokenizer), matcher_(stop), min_tokens_(min_tokens) {}

std::string TextStream::Append(TokenId id) {
  ++tokens_;
  return Take(detokenizer_.Append(id));
}

std::string TextStream::Finish() {
  std::string shown = Take(detokenizer_.Flush());
  if (!stopped()) {
    shown += held_back_;
    held_back_.clear();
  }
  return shown;
}

std::string TextStream::Take(std::string_view text) {
  for (const char byte : text) {
    held_back_.push_back(byte);
    const std::string_view match = matcher_.Push(byte);
    if (!match.empty() && tokens_ >= min_tokens_) {
      stop_match_ = match;
      held_back_.resize(held_back_.size() - match.size());
      return std::exchange(held_back_, {});
    }
  }
  // A stop string is UTF-8, so what may become one begins with a whole character.
  const std::size_t shown = held_back_.size() - matcher_.open_bytes();
  std::string result = held_back_.substr(0, shown);
  held_back_.erase(0, shown);
  return result;
}

}  // namespace baton
