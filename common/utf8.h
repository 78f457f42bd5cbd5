#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

// Byte offset of the first byte that does not belong to well-formed UTF-8 (Unicode 15, table 3-7:
// no overlong forms, no surrogates, nothing above U+10FFFF, no truncated end); nullopt when all of
// `text` is well formed.
std::optional<std::size_t> FindInvalidUtf8(std::string_view text);

// Length in bytes of the longest prefix of `text` that ends between two characters, where a
// malformed byte counts as a character. What follows is the beginning of a character that later
// bytes may still complete.
std::size_t CompleteUtf8Prefix(std::string_view text);

// `text` with every maximal malformed part replaced by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

}  // namespace baton
