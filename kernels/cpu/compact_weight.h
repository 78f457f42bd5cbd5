#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/kernel_table.h"

namespace baton {

// The panels of a packed weight once more, in three quarters of the bytes and without loss: few
// rows are bound by the way of the weights from memory.
//
// Sign and fraction of a value keep their byte. The exponent becomes an index of four bits into the
// sixteen most frequent ones of the weight; trained weights have nearly all theirs among these (of
// SmolLM2-135M's 134 million, 15,009 have another). The others are exceptions: put in their places
// after a chunk is unpacked.
//
// A chunk is 16 words of k of a panel, [16, 32] words. Two rows of it, 64 values each, become three
// lines: the first row's bytes, the second row's, and indices, the first row's in the low halves.
// In a line, each 16 bytes belong to 8 values of the row's first half and then 8 of its second: as
// they leave vpunpcklbw and vpunpckhbw.
//
// Immutable after construction.
class CompactWeight {
 public:
  // Of panels [panels, word_columns, 32] of words. None where k is off the grid of chunks, where
  // more than one value in 2,048 would be an exception, or where there is no memory: then the
  // panels themselves are read.
  static std::optional<CompactWeight> Create(std::span<const std::uint32_t> panels,
                                             int word_columns,
                                             HugePageArena& arena);

  // From panel `first` on.
  CompactPanels panels(int first) const;

  std::size_t bytes() const { return bytes_; }

 private:
  CompactWeight() = default;

  // Of a row: those without an index.
  void NoteExceptions(const std::uint32_t* words,
                      std::span<const std::uint8_t> indices,
                      std::uint32_t chunk,
                      std::size_t first_value);

  std::shared_ptr<std::byte> memory_;  // shared with other weights of one mapping
  std::size_t bytes_ = 0;
  int panel_chunks_ = 0;
  std::array<std::uint8_t, 16> exponents_ = {};
  std::vector<CompactException> exceptions_;  // in order, and one of no chunk
};

}  // namespace baton
