#include "planner/least_squares.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

namespace baton {
namespace {

constexpr std::size_t kTerms = 3;
using Terms = std::array<double, kTerms>;

const std::vector<std::vector<std::size_t>>& Subsets() {
  static const std::vector<std::vector<std::size_t>> kSubsets = {{0},    {1},    {2},      {0, 1},
                                                                 {0, 2}, {1, 2}, {0, 1, 2}};
  return kSubsets;
}

// Gauss with pivots on the normal equations of the chosen terms, which are scaled to columns of
// length one first. nullopt when they do not determine the coefficients.
std::optional<Terms> Solve(std::span<const Observation> observations,
                           const std::vector<std::size_t>& chosen) {
  const std::size_t size = chosen.size();
  Terms scale{};
  for (std::size_t i = 0; i < size; ++i) {
    for (const Observation& seen : observations) {
      scale[i] = std::hypot(scale[i], seen.terms[chosen[i]] / seen.value);
    }
    if (!(scale[i] > 0)) {
      return std::nullopt;
    }
  }
  double matrix[kTerms][kTerms + 1] = {};
  for (const Observation& seen : observations) {
    for (std::size_t row = 0; row < size; ++row) {
      const double left = seen.terms[chosen[row]] / seen.value / scale[row];
      for (std::size_t column = 0; column < size; ++column) {
        matrix[row][column] += left * seen.terms[chosen[column]] / seen.value / scale[column];
      }
      matrix[row][size] += left;
    }
  }
  for (std::size_t pivot = 0; pivot < size; ++pivot) {
    std::size_t best = pivot;
    for (std::size_t row = pivot + 1; row < size; ++row) {
      best = std::abs(matrix[row][pivot]) > std::abs(matrix[best][pivot]) ? row : best;
    }
    std::swap(matrix[pivot], matrix[best]);
    if (std::abs(matrix[pivot][pivot]) < 1e-12) {
      return std::nullopt;
    }
    for (std::size_t row = 0; row < size; ++row) {
      const double factor = row == pivot ? 0 : matrix[row][pivot] / matrix[pivot][pivot];
      for (std::size_t column = 0; column <= size; ++column) {
        matrix[row][column] -= factor * matrix[pivot][column];
      }
    }
  }
  Terms coefficients{};
  for (std::size_t i = 0; i < size; ++i) {
    coefficients[chosen[i]] = matrix[i][size] / matrix[i][i] / scale[i];
  }
  return coefficients;
}

double SquaredError(std::span<const Observation> observations, const Terms& coefficients) {
  double sum = 0;
  for (const Observation& seen : observations) {
    double value = 0;
    for (std::size_t i = 0; i < kTerms; ++i) {
      value += coefficients[i] * seen.terms[i];
    }
    const double error = value / seen.value - 1;
    sum += error * error;
  }
  return sum;
}

}  // namespace

std::array<double, 3> FitNonNegative(std::span<const Observation> observations) {
  // Fits closer than this to each other are equal.
  constexpr double kEqualError = 1e-12;
  Terms best{};
  std::optional<double> least;
  for (const std::vector<std::size_t>& chosen : Subsets()) {
    if (chosen.size() > observations.size()) {
      continue;
    }
    const std::optional<Terms> coefficients = Solve(observations, chosen);
    if (!coefficients.has_value() ||
        std::any_of(coefficients->begin(), coefficients->end(), [](double c) { return c < 0; })) {
      continue;
    }
    const double error = SquaredError(observations, *coefficients);
    if (!least.has_value() || error < *least - kEqualError) {
      best = *coefficients;
      least = error;
    }
  }
  return best;
}

}  // namespace baton
