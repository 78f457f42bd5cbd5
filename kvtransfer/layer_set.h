#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "common/check.h"

namespace baton {

inline constexpr int kMaxLayers = 256;

// A half-open range of layers, [first, first + count).
struct LayerRange {
  int first = 0;
  int count = 0;
};

// A set of layers of one block: which are ready, sent, landed. A value of 32 bytes.
class LayerSet {
 public:
  LayerSet() = default;

  // REQUIRES: the range lies in [0, kMaxLayers).
  explicit LayerSet(LayerRange range) {
    BATON_CHECK(range.first >= 0 && range.count >= 0 && range.first + range.count <= kMaxLayers);
    for (int layer = range.first; layer < range.first + range.count; ++layer) {
      words_[Word(layer)] |= Bit(layer);
    }
  }

  bool Contains(const LayerSet& other) const { return (other - *this).empty(); }
  bool Intersects(const LayerSet& other) const { return !(*this & other).empty(); }
  bool empty() const { return *this == LayerSet(); }

  int Count() const {
    int count = 0;
    for (const std::uint64_t word : words_) {
      count += std::popcount(word);
    }
    return count;
  }

  // The lowest run of neighbouring layers; count 0 when empty.
  LayerRange FirstRun() const {
    int first = 0;
    while (first < kMaxLayers && !Has(first)) {
      first = words_[Word(first)] == 0 ? (first / 64 + 1) * 64 : first + 1;
    }
    int end = first;
    while (end < kMaxLayers && Has(end)) {
      ++end;
    }
    return {first, end - first};
  }

  LayerSet& operator|=(const LayerSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      words_[i] |= other.words_[i];
    }
    return *this;
  }
  LayerSet& operator-=(const LayerSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      words_[i] &= ~other.words_[i];
    }
    return *this;
  }
  friend LayerSet operator-(LayerSet a, const LayerSet& b) { return a -= b; }
  friend LayerSet operator&(const LayerSet& a, const LayerSet& b) { return a - (a - b); }
  friend bool operator==(const LayerSet&, const LayerSet&) = default;

 private:
  static std::size_t Word(int layer) { return static_cast<std::size_t>(layer) / 64; }
  static std::uint64_t Bit(int layer) { return std::uint64_t{1} << (layer % 64); }
  bool Has(int layer) const { return (words_[Word(layer)] & Bit(layer)) != 0; }

  std::array<std::uint64_t, kMaxLayers / 64> words_{};
};

}  // namespace baton
