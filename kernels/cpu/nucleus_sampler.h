#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace baton {

// More likely first, among equals the lowest id.
struct MoreLikely {
  const float* logits;

  bool operator()(int a, int b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

// Draws from the most likely tokens, as few as reach a share of the probability: what sorting all
// candidates and adding up their weights would give, at the cost of one pass.
//
// Candidates go into buckets by how far their logit is from the largest one, in steps that are a
// constant share of that distance. Where the share ends and where the draw falls is found by
// adding up buckets; only the two buckets in which that happens are sorted.
//
// Not thread-safe: keeps scratch memory.
class NucleusSampler {
 public:
  // `maximum` is the largest logit of the candidates, `weights` [vocabulary] their probabilities in
  // any unit, `share` in (0, 1), `uniform` in [0, 1). REQUIRES: a candidate.
  int Draw(const float* logits,
           float maximum,
           const float* weights,
           const std::vector<int>& candidates,
           float share,
           double uniform);

 private:
  // Distances, infinity included, by exponent and six bits of mantissa: 1.6 % of the distance.
  static constexpr int kDroppedBits = 17;
  static constexpr std::size_t kBuckets = (std::size_t{0x7f800000} >> kDroppedBits) + 1;

  void Fill(const float* logits,
            float maximum,
            const float* weights,
            const std::vector<int>& candidates);
  // Fills sorted_ with the candidates of a bucket.
  void Sort(const float* logits, const std::vector<int>& candidates, std::size_t bucket);

  std::vector<double> bucket_weights_;    // [kBuckets]
  std::vector<std::uint16_t> bucket_of_;  // [candidates]
  std::size_t last_bucket_ = 0;           // the last that holds a candidate
  std::vector<int> sorted_;               // token ids
};

}  // namespace baton
