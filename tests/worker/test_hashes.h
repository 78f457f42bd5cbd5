#pragma once

#include <initializer_list>
#include <set>
#include <string>

#include "common/block_hash.h"

namespace baton {

// A block hash that a number stands for.
inline PrefixHash TestHash(std::uint32_t number) {
  PrefixHash hash;
  for (std::size_t i = 0; i < 4; ++i) {
    hash.bytes[i] = static_cast<std::uint8_t>(number >> (8 * i));
  }
  return hash;
}

// As reports carry it.
inline std::string HashBytes(std::uint32_t number) {
  const PrefixHash hash = TestHash(number);
  return {reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()};
}
inline std::set<std::string> HashBytes(std::initializer_list<std::uint32_t> numbers) {
  std::set<std::string> hashes;
  for (const std::uint32_t number : numbers) {
    hashes.insert(HashBytes(number));
  }
  return hashes;
}

}  // namespace baton
