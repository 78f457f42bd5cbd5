#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/cpu/compact_weight.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/ops.h"

namespace baton {

// A weight as panels of 32 output columns: [ceil(N / 32)][K/2][32] words, each two bf16 values with
// neighbouring k. A word is one lane of a dot product instruction, and a panel is read from front
// to back. Columns beyond N are zero.
//
// Where the kernels make use of it, a compact weight is kept beside the panels.
//
// Immutable after construction.
class CpuPackedWeight final : public PackedWeight {
 public:
  // compact_arena: for the compact weight; null: none is made. Weights that are used one after the
  // other lie so in either arena if they are created in this order: what is asked for ahead at the
  // end of one is the beginning of the next.
  static absl::StatusOr<std::unique_ptr<PackedWeight>> Create(int rows,
                                                              int columns,
                                                              const RowReader& reader,
                                                              HugePageArena& arena,
                                                              HugePageArena* compact_arena);

  int rows() const override { return rows_; }
  int columns() const override { return columns_; }
  std::size_t bytes() const override { return panel_bytes() + compact_bytes(); }
  std::size_t bytes_of_few_rows() const override {
    return compact_.has_value() ? compact_bytes() : panel_bytes();
  }

  int panels() const;
  const std::uint32_t* panel(int index) const;  // [K/2, 32]
  CompactPanels compact_panels(int first) const {
    return compact_.has_value() ? compact_->panels(first) : CompactPanels();
  }

  // Row `row` of the weight, [K]: an embedding.
  void ReadRow(int row, float* out) const;

 private:
  CpuPackedWeight(int rows, int columns, HugePageArena& arena);

  std::size_t panel_words() const;
  std::size_t panel_bytes() const {
    return panel_words() * static_cast<std::size_t>(panels()) * sizeof(std::uint32_t);
  }
  std::size_t compact_bytes() const { return compact_.has_value() ? compact_->bytes() : 0; }

  int rows_;
  int columns_;
  std::shared_ptr<std::byte> memory_;  // shared with the other weights of one mapping
  std::uint32_t* words_;               // inside memory_
  std::optional<CompactWeight> compact_;
};

}  // namespace baton
