#pragma once

#include <array>
#include <span>

namespace baton {

// One observation: value = sum of coefficients times terms.
struct Observation {
  std::array<double, 3> terms{};
  double value = 0;  // above 0
};

// The three coefficients, none negative, with the least sum of squared relative errors.
//
// Tries every subset of terms, of no more terms than there are observations, and takes the best; of
// equals, which happens with few observations, the one with fewer terms, then the one that is first
// in the order {0}, {1}, {2}, {0,1}, {0,2}, {1,2}, {0,1,2}. All zero when there is no observation.
// Pure; thread-safe.
std::array<double, 3> FitNonNegative(std::span<const Observation> observations);

}  // namespace baton
