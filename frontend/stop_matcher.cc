#include "frontend/stop_matcher.h"

#include <algorithm>

namespace baton {

StopMatcher::StopMatcher(const std::vector<std::string>& strings) {
  for (const std::string& text : strings) {
    Pattern pattern{.text = text, .fallback = std::vector<std::size_t>(text.size() + 1, 0)};
    std::size_t length = 0;
    for (std::size_t i = 1; i < text.size(); ++i) {
      while (length > 0 && text[i] != text[length]) {
        length = pattern.fallback[length];
      }
      length += text[i] == text[length] ? 1 : 0;
      pattern.fallback[i + 1] = length;
    }
    patterns_.push_back(std::move(pattern));
  }
}

std::string_view StopMatcher::Push(char byte) {
  std::string_view found;
  for (Pattern& pattern : patterns_) {
    while (pattern.matched > 0 && pattern.text[pattern.matched] != byte) {
      pattern.matched = pattern.fallback[pattern.matched];
    }
    pattern.matched += pattern.text[pattern.matched] == byte ? 1 : 0;
    if (pattern.matched == pattern.text.size()) {
      pattern.matched = pattern.fallback[pattern.matched];
      found = pattern.text.size() > found.size() ? std::string_view(pattern.text) : found;
    }
  }
  return found;
}

std::size_t StopMatcher::open_bytes() const {
  std::size_t most = 0;
  for (const Pattern& pattern : patterns_) {
    most = std::max(most, pattern.matched);
  }
  return most;
}

}  // namespace baton
