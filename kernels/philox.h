#pragma once

#include <array>
#include <cstdint>

#include "kernels/host_device.h"

namespace baton {

// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four random
// words from a counter and a key, with no state. The same pair gives the same words on every
// machine and backend. The words replace the counter.
BATON_HOST_DEVICE inline void PhiloxInPlace(std::uint32_t (&counter)[4],
                                            std::uint32_t key0,
                                            std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter[0] = static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0;
    counter[1] = static_cast<std::uint32_t>(b);
    counter[2] = static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1;
    counter[3] = static_cast<std::uint32_t>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

inline std::array<std::uint32_t, 4> Philox(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key) {
  std::uint32_t words[4] = {counter[0], counter[1], counter[2], counter[3]};
  PhiloxInPlace(words, key[0], key[1]);
  return {words[0], words[1], words[2], words[3]};
}

// Uniform in [0, 1) with 53 bits, for one (seed, position).
BATON_HOST_DEVICE inline double UniformDraw(std::uint64_t seed, std::uint64_t position) {
  std::uint32_t words[4] = {static_cast<std::uint32_t>(position),
                            static_cast<std::uint32_t>(position >> 32), 0, 0};
  PhiloxInPlace(words, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  const std::uint64_t bits = std::uint64_t{words[0]} << 32 | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace baton
