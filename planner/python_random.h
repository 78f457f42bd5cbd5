#pragma once

#include <array>
#include <cstdint>

namespace baton {

// The generator behind CPython's random.Random(seed), so that a simulation gives the same numbers
// as one that was written in Python.
//
// MT19937 (Matsumoto and Nishimura, 1998), seeded by `init_by_array` with the 32-bit words of the
// seed. std::mt19937(seed) seeds in the other way and gives other streams.
//
// Not thread-safe.
class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed);

  // The next output of the generator: getrandbits(32).
  std::uint32_t NextWord();
  // random(): uniform in [0, 1) with 53 bits.
  double NextDouble();
  // An integer in [0, limit), as randrange(limit) and choice() draw it: the top bits of one output,
  // as many as `limit` has, again until below `limit`. REQUIRES: limit > 0.
  std::uint32_t Below(std::uint32_t limit);
  // randint(low, high): both ends included. REQUIRES: low <= high.
  std::int64_t Between(std::int64_t low, std::int64_t high);

 private:
  static constexpr std::size_t kStateWords = 624;

  void SeedWithWord(std::uint32_t word);
  void Refill();

  std::array<std::uint32_t, kStateWords> state_{};
  std::size_t next_ = kStateWords;  // index of the next unused word of state_
};

}  // namespace baton
