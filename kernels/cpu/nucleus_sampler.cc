#include "kernels/cpu/nucleus_sampler.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace baton {

void NucleusSampler::Fill(const float* logits,
                          float maximum,
                          const float* weights,
                          const std::vector<int>& candidates) {
  bucket_weights_.assign(kBuckets, 0.0);
  bucket_of_.resize(candidates.size());
  last_bucket_ = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const float distance = maximum - logits[candidates[i]];
    const std::size_t bucket = std::bit_cast<std::uint32_t>(distance) >> kDroppedBits;
    bucket_of_[i] = static_cast<std::uint16_t>(bucket);
    bucket_weights_[bucket] += static_cast<double>(weights[candidates[i]]);
    last_bucket_ = std::max(last_bucket_, bucket);
  }
}

void NucleusSampler::Sort(const float* logits,
                          const std::vector<int>& candidates,
                          std::size_t bucket) {
  sorted_.clear();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (bucket_of_[i] == bucket) {
      sorted_.push_back(candidates[i]);
    }
  }
  std::sort(sorted_.begin(), sorted_.end(), MoreLikely{logits});
}

int NucleusSampler::Draw(const float* logits,
                         float maximum,
                         const float* weights,
                         const std::vector<int>& candidates,
                         float share,
                         double uniform) {
  Fill(logits, maximum, weights, candidates);
  double total = 0;
  for (std::size_t bucket = 0; bucket <= last_bucket_; ++bucket) {
    total += bucket_weights_[bucket];
  }
  const double enough = static_cast<double>(share) * total;

  // Buckets before `end` stay whole, of `end` those in sorted_.
  std::size_t end = 0;
  double kept = 0;
  while (end < last_bucket_ && kept + bucket_weights_[end] < enough) {
    kept += bucket_weights_[end++];
  }
  Sort(logits, candidates, end);
  std::size_t kept_of_end = 0;
  while (kept_of_end < sorted_.size() && kept < enough) {
    kept += static_cast<double>(weights[sorted_[kept_of_end++]]);
  }
  sorted_.resize(kept_of_end);

  const double target = uniform * kept;
  double passed = 0;
  std::size_t bucket = 0;
  while (bucket < end && passed + bucket_weights_[bucket] <= target) {
    passed += bucket_weights_[bucket++];
  }
  if (bucket < end) {
    Sort(logits, candidates, bucket);
  }
  for (const int token : sorted_) {
    passed += static_cast<double>(weights[token]);
    if (passed > target) {
      return token;
    }
  }
  return sorted_.back();  // the draw fell on the last rounding error
}

}  // namespace baton
