#include "kernels/cpu/compact_weight.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace baton {
namespace {

constexpr std::size_t kChunkValues = std::size_t{kCompactChunkWords} * 2 * kPanelColumns;
constexpr std::size_t kRowValues = 2 * kPanelColumns;  // of one word of k
constexpr std::size_t kValuesOfException = 2048;       // at the least
constexpr std::uint8_t kNoIndex = 0x80;

using Histogram = std::array<std::uint64_t, 256>;

Histogram CountExponents(std::span<const std::uint32_t> words) {
  // Neighbours are mostly alike, and to count one twice in a row is to wait: four counts in turn.
  std::array<std::array<std::uint32_t, 256>, 4> counts;
  Histogram sum = {};
  constexpr std::size_t kRun = std::size_t{1} << 30;  // no count overflows
  for (std::size_t first = 0; first < words.size(); first += kRun) {
    counts = {};
    const std::size_t end = std::min(words.size(), first + kRun);
    for (std::size_t i = first; i < end; i += 2) {  // a panel has an even number
      const std::uint32_t word = words[i];
      const std::uint32_t next = words[i + 1];
      ++counts[0][word >> 7 & 0xff];
      ++counts[1][word >> 23 & 0xff];
      ++counts[2][next >> 7 & 0xff];
      ++counts[3][next >> 23 & 0xff];
    }
    for (const auto& count : counts) {
      for (std::size_t exponent = 0; exponent < count.size(); ++exponent) {
        sum[exponent] += count[exponent];
      }
    }
  }
  return sum;
}

// A row of a chunk: what stays of each value, and the index of its exponent or kNoIndex.
struct Row {
  std::array<std::uint8_t, kRowValues> rest;
  std::array<std::uint8_t, kRowValues> index;
};

// True when all exponents have an index. Loops of one kind each, which the compiler makes vectors
// of where there is no table to look into.
bool TakeApart(const std::uint32_t* words, const std::array<std::uint8_t, 256>& index, Row& row) {
  std::array<std::uint16_t, kRowValues> values;
  for (std::size_t i = 0; i < kPanelColumns; ++i) {
    values[2 * i] = static_cast<std::uint16_t>(words[i]);
    values[2 * i + 1] = static_cast<std::uint16_t>(words[i] >> 16);
  }
  for (std::size_t i = 0; i < kRowValues; ++i) {
    row.rest[i] = static_cast<std::uint8_t>((values[i] >> 8 & 0x80) | (values[i] & 0x7f));
  }
  for (std::size_t i = 0; i < kRowValues; ++i) {
    row.index[i] = index[static_cast<std::uint8_t>(values[i] >> 7)];
  }
  unsigned all = 0;
  for (const std::uint8_t one : row.index) {
    all |= one;
  }
  return (all & kNoIndex) == 0;
}

// In the order of a line.
void StoreLine(const std::array<std::uint8_t, kRowValues>& bytes, std::uint8_t* line) {
  for (std::size_t lane = 0; lane < 4; ++lane) {
    std::memcpy(line + lane * 16, bytes.data() + lane * 8, 8);
    std::memcpy(line + lane * 16 + 8, bytes.data() + 32 + lane * 8, 8);
  }
}

}  // namespace

std::optional<CompactWeight> CompactWeight::Create(std::span<const std::uint32_t> panels,
                                                   int word_columns,
                                                   HugePageArena& arena) {
  if (word_columns % kCompactChunkWords != 0) {
    return std::nullopt;
  }
  const Histogram count = CountExponents(panels);
  std::array<std::uint8_t, 256> order = {};
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&count](std::uint8_t exponent) { return count[exponent]; });
  CompactWeight weight;
  std::array<std::uint8_t, 256> index;
  index.fill(kNoIndex);
  std::uint64_t exceptions = 2 * panels.size();
  for (std::size_t i = 0; i < weight.exponents_.size(); ++i) {
    weight.exponents_[i] = order[i];
    index[order[i]] = static_cast<std::uint8_t>(i);
    exceptions -= count[order[i]];
  }
  const std::size_t chunks = 2 * panels.size() / kChunkValues;
  if (exceptions > 2 * panels.size() / kValuesOfException ||
      chunks >= std::numeric_limits<std::uint32_t>::max()) {
    return std::nullopt;
  }
  weight.bytes_ = chunks * kCompactChunkBytes;
  weight.memory_ = arena.Allocate(weight.bytes_);
  if (weight.memory_ == nullptr) {
    return std::nullopt;
  }
  weight.panel_chunks_ = word_columns / kCompactChunkWords;
  weight.exceptions_.reserve(exceptions + 1);
  auto* out = reinterpret_cast<std::uint8_t*>(weight.memory_.get());
  const std::uint32_t* words = panels.data();
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    for (std::size_t row = 0; row < kCompactChunkWords; row += 2) {
      Row rows[2];
      for (std::size_t r = 0; r < 2; ++r, words += kPanelColumns) {
        if (!TakeApart(words, index, rows[r])) {
          weight.NoteExceptions(words, rows[r].index, static_cast<std::uint32_t>(chunk),
                                (row + r) * kRowValues);
        }
        StoreLine(rows[r].rest, out + r * kRowValues);
      }
      std::array<std::uint8_t, kRowValues> indices;
      for (std::size_t i = 0; i < kRowValues; ++i) {
        indices[i] = static_cast<std::uint8_t>((rows[0].index[i] & 0x0f) | rows[1].index[i] << 4);
      }
      StoreLine(indices, out + 2 * kRowValues);
      out += kCompactPairBytes;
    }
  }
  weight.exceptions_.push_back({.chunk = std::numeric_limits<std::uint32_t>::max()});
  return weight;
}

void CompactWeight::NoteExceptions(const std::uint32_t* words,
                                   std::span<const std::uint8_t> indices,
                                   std::uint32_t chunk,
                                   std::size_t first_value) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] == kNoIndex) {
      exceptions_.push_back({.chunk = chunk,
                             .value = static_cast<std::uint16_t>(first_value + i),
                             .bits = static_cast<std::uint16_t>(words[i / 2] >> i % 2 * 16)});
    }
  }
}

CompactPanels CompactWeight::panels(int first) const {
  const auto first_chunk = static_cast<std::uint32_t>(first * panel_chunks_);
  return {.data = memory_.get() + std::size_t{first_chunk} * kCompactChunkBytes,
          .first_chunk = first_chunk,
          .exponents = exponents_.data(),
          .exceptions =
              &*std::ranges::lower_bound(exceptions_, first_chunk, {}, &CompactException::chunk)};
}

}  // namespace baton
