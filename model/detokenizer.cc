#include "model/detokenizer.h"

#include <utility>

#include "common/utf8.h"

namespace baton {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, ControlTokens control)
    : tokenizer_(tokenizer), control_(control) {}

std::string IncrementalDetokenizer::Append(TokenId id) {
  if (control_ == ControlTokens::kSkip && tokenizer_.IsControl(id)) {
    return "";
  }
  pending_.append(tokenizer_.TokenBytes(id));
  const std::size_t complete = CompleteUtf8Prefix(pending_);
  std::string text = ReplaceInvalidUtf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string IncrementalDetokenizer::Flush() {
  return ReplaceInvalidUtf8(std::exchange(pending_, {}));
}

}  // namespace baton
