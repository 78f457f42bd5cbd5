#include "kernels/rope.h"

#include <cmath>

namespace baton {

std::vector<double> RopeFrequencies(int head_dim, double base) {
  std::vector<double> frequencies;
  for (int i = 0; i < head_dim / 2; ++i) {
    frequencies.push_back(std::pow(base, -2.0 * i / head_dim));
  }
  return frequencies;
}

}  // namespace baton
