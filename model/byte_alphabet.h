#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

// The alphabet of byte-level BPE: every byte has a printable character, so that token strings are
// readable text.
//
// The bytes '!' to '~', 0xa1 to 0xac and 0xae to 0xff are their own code points; the other 68 are
// U+0100 onwards, in order.

// The character of `byte`, as UTF-8.
std::string AlphabetCharacter(std::uint8_t byte);

// The bytes that `text` spells; nullopt when a character of it is not in the alphabet.
std::optional<std::string> BytesOfAlphabetText(std::string_view text);

}  // namespace baton
