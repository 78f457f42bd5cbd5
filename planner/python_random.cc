#include "planner/python_random.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace baton {

PythonRandom::PythonRandom(std::uint64_t seed) {
  // Python splits an integer seed into words, the lowest first; zero still has one.
  const std::array<std::uint32_t, 2> key = {static_cast<std::uint32_t>(seed),
                                            static_cast<std::uint32_t>(seed >> 32)};
  const std::size_t key_words = key[1] == 0 ? 1 : 2;
  SeedWithWord(19650218);
  std::size_t i = 1;
  std::size_t j = 0;
  const auto previous = [this](std::size_t index) {
    return state_[index - 1] ^ (state_[index - 1] >> 30);
  };
  const auto advance = [&] {
    if (++i == kStateWords) {
      state_[0] = state_[kStateWords - 1];
      i = 1;
    }
  };
  for (std::size_t count = std::max(kStateWords, key_words); count > 0; --count) {
    state_[i] = (state_[i] ^ (previous(i) * 1664525u)) + key[j] + static_cast<std::uint32_t>(j);
    advance();
    j = (j + 1) % key_words;
  }
  for (std::size_t count = kStateWords - 1; count > 0; --count) {
    state_[i] = (state_[i] ^ (previous(i) * 1566083941u)) - static_cast<std::uint32_t>(i);
    advance();
  }
  state_[0] = 0x80000000u;  // so that the state is never all zero
}

void PythonRandom::SeedWithWord(std::uint32_t word) {
  state_[0] = word;
  for (std::size_t i = 1; i < kStateWords; ++i) {
    const std::uint32_t last = state_[i - 1];
    state_[i] = 1812433253u * (last ^ (last >> 30)) + static_cast<std::uint32_t>(i);
  }
}

void PythonRandom::Refill() {
  constexpr std::size_t kShift = 397;
  for (std::size_t i = 0; i < kStateWords; ++i) {
    const std::uint32_t joined =
        (state_[i] & 0x80000000u) | (state_[(i + 1) % kStateWords] & 0x7FFFFFFFu);
    const std::uint32_t twist = (joined & 1u) != 0 ? 0x9908B0DFu : 0u;
    state_[i] = state_[(i + kShift) % kStateWords] ^ (joined >> 1) ^ twist;
  }
  next_ = 0;
}

std::uint32_t PythonRandom::NextWord() {
  if (next_ == kStateWords) {
    Refill();
  }
  std::uint32_t word = state_[next_++];
  word ^= word >> 11;
  word ^= (word << 7) & 0x9D2C5680u;
  word ^= (word << 15) & 0xEFC60000u;
  return word ^ (word >> 18);
}

double PythonRandom::NextDouble() {
  const double high = NextWord() >> 5;  // 27 bits
  const double low = NextWord() >> 6;   // 26 bits
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

std::uint32_t PythonRandom::Below(std::uint32_t limit) {
  BATON_CHECK(limit > 0);
  const int unused_bits = std::countl_zero(limit);
  std::uint32_t value = NextWord() >> unused_bits;
  while (value >= limit) {
    value = NextWord() >> unused_bits;
  }
  return value;
}

std::int64_t PythonRandom::Between(std::int64_t low, std::int64_t high) {
  BATON_CHECK(low <= high && high - low < 0xFFFFFFFF);
  return low + Below(static_cast<std::uint32_t>(high - low + 1));
}

}  // namespace baton
