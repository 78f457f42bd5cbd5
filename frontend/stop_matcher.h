#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

// Looks for the first of several strings in a text that arrives byte by byte.
//
// The string that is complete first wins, the longest of those that end at the same byte; so the
// outcome does not depend on how the text is cut into pieces. O(strings) per byte whatever the
// text.
//
// Not thread-safe.
class StopMatcher {
 public:
  // None of `strings` is empty.
  explicit StopMatcher(const std::vector<std::string>& strings);

  // Takes the next byte. The string that it completes, else empty. After a match the search goes on
  // as if it had not counted.
  std::string_view Push(char byte);

  // How many of the last bytes are the beginning of some string.
  std::size_t open_bytes() const;

 private:
  // Knuth, Morris and Pratt: fallback[k] is the length of the longest proper prefix of text[0, k)
  // that also ends it.
  struct Pattern {
    std::string text;
    std::vector<std::size_t> fallback;
    std::size_t matched = 0;  // bytes of `text` that the input ends with, below text.size()
  };

  std::vector<Pattern> patterns_;
};

}  // namespace baton
