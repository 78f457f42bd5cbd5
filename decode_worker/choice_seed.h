#pragma once

#include <cstdint>

namespace baton {

// The sampling seed of one choice of a request: of choice 0 the request's own, so that it is what a
// request for one choice gives; of the others one step of SplitMix64 from it, as many strides on as
// the choice's index. Different choices get different seeds.
constexpr std::uint64_t ChoiceSeed(std::uint64_t seed, std::uint32_t choice) {
  if (choice == 0) {
    return seed;
  }
  constexpr std::uint64_t kStride = 0x9E3779B97F4A7C15;
  std::uint64_t bits = seed + choice * kStride;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
  return bits ^ (bits >> 31);
}

}  // namespace baton
