#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "common/clock.h"

namespace baton {

// Between which the delays of the fake server lie, evenly.
struct FakeDelayRange {
  Duration first_low{};
  Duration first_high{};
  Duration gap_low{};
  Duration gap_high{};
};

// When the fake server gives the tokens of a request, from its arrival. They depend on the prompt
// alone, so a test knows them too.
inline std::vector<Duration> FakeTokenTimes(const std::vector<std::uint32_t>& prompt,
                                            int output_tokens,
                                            const FakeDelayRange& range) {
  std::uint64_t seed = 0;
  for (const std::uint32_t token : prompt) {
    seed = seed * 31 + token;
  }
  std::mt19937_64 generator(seed);
  const auto between = [&generator](Duration low, Duration high) {
    const auto width = static_cast<std::uint64_t>((high - low).count()) + 1;
    return low + Duration(generator() % width);
  };
  std::vector<Duration> times;
  Duration time = between(range.first_low, range.first_high);
  for (int i = 0; i < output_tokens; ++i) {
    times.push_back(time);
    time += between(range.gap_low, range.gap_high);
  }
  return times;
}

}  // namespace baton
