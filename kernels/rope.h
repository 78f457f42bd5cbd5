#pragma once

#include <vector>

namespace baton {

// base^(-2i/D) for i in [0, D/2): the plain rotary embedding, no scaling.
std::vector<double> RopeFrequencies(int head_dim, double base);

}  // namespace baton
