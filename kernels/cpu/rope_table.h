#pragma once

#include <span>
#include <vector>

#include "kernels/ops.h"

namespace baton {

// Cosines and sines [positions, D/2], computed in double and kept in float. Immutable.
class CpuRopeTable final : public RopeTable {
 public:
  CpuRopeTable(std::span<const double> frequencies, int positions);

  int head_dim() const override { return 2 * half_; }
  int positions() const override { return positions_; }

  const float* cosines(int position) const { return cosines_.data() + Offset(position); }
  const float* sines(int position) const { return sines_.data() + Offset(position); }

 private:
  std::size_t Offset(int position) const {
    return static_cast<std::size_t>(position) * static_cast<std::size_t>(half_);
  }

  int half_;
  int positions_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

}  // namespace baton
