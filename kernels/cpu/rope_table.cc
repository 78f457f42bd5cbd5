#include "kernels/cpu/rope_table.h"

#include <cmath>

namespace baton {

CpuRopeTable::CpuRopeTable(std::span<const double> frequencies, int positions)
    : half_(static_cast<int>(frequencies.size())), positions_(positions) {
  const std::size_t count = frequencies.size() * static_cast<std::size_t>(positions);
  cosines_.reserve(count);
  sines_.reserve(count);
  for (int position = 0; position < positions; ++position) {
    for (const double frequency : frequencies) {
      cosines_.push_back(static_cast<float>(std::cos(position * frequency)));
      sines_.push_back(static_cast<float>(std::sin(position * frequency)));
    }
  }
}

}  // namespace baton
