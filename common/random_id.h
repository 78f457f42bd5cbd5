#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/sha256.h"

namespace baton {

// Fills `bytes` from the kernel's random source.
void FillRandom(std::uint8_t* bytes, std::size_t count);

// A random 128-bit name that no two processes or requests share. All zero means "none".
template <typename Tag>
struct RandomId {
  std::array<std::uint8_t, 16> bytes{};

  static RandomId Make() {
    RandomId id;
    FillRandom(id.bytes.data(), id.bytes.size());
    return id;
  }
  // nullopt unless exactly 16 bytes are given.
  static std::optional<RandomId> FromBytes(std::string_view raw) {
    if (raw.size() != 16) {
      return std::nullopt;
    }
    RandomId id;
    for (std::size_t i = 0; i < 16; ++i) {
      id.bytes[i] = static_cast<std::uint8_t>(raw[i]);
    }
    return id;
  }

  std::string_view AsBytes() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string ToString() const { return ToHex(AsBytes()); }

  friend auto operator<=>(const RandomId&, const RandomId&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const RandomId& id) {
    return H::combine(std::move(state), id.bytes);
  }
};

using InstanceId = RandomId<struct InstanceIdTag>;  // one run of one process
using HandoffId = RandomId<struct HandoffIdTag>;  // one attempt to hand one prompt's KV blocks over

}  // namespace baton
