#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton {

// Counts of values by upper bound; each bound belongs to its bucket. Not thread-safe.
class Histogram {
 public:
  // `bounds` ascend.
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  void Add(double value);
  // REQUIRES: the same bounds.
  void Merge(const Histogram& other);

  const std::vector<double>& bounds() const { return bounds_; }
  // The last: above all bounds.
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
};

}  // namespace baton
