#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "common/random_id.h"

namespace baton {

inline constexpr int kProcessBlocks = 20;

// REQUIRES: 32 hexadecimal digits, as an id's ToString gives them.
template <typename Id>
Id FromHex(const std::string& text) {
  Id id;
  for (std::size_t i = 0; i < id.bytes.size(); ++i) {
    id.bytes[i] = static_cast<std::uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

}  // namespace baton
