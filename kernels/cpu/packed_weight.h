#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/ops.h"

namespace baton {

// A weight as panels of 32 output columns: [ceil(N / 32)][K/2][32] words, each two bf16 values with
// neighbouring k. A word is one lane of a dot product instruction, and a panel is read from front
// to back. Columns beyond N are zero.
//
// Immutable after construction.
class CpuPackedWeight final : public PackedWeight {
 public:
  static absl::StatusOr<std::unique_ptr<PackedWeight>> Create(int rows,
                                                              int columns,
                                                              const RowReader& reader,
                                                              HugePageArena& arena);

  int rows() const override { return rows_; }
  int columns() const override { return columns_; }
  std::size_t bytes() const override {
    return panel_words() * static_cast<std::size_t>(panels()) * sizeof(std::uint32_t);
  }

  int panels() const;
  const std::uint32_t* panel(int index) const;  // [K/2, 32]

  // Row `row` of the weight, [K]: an embedding.
  void ReadRow(int row, float* out) const;

 private:
  CpuPackedWeight(int rows, int columns, HugePageArena& arena);

  std::size_t panel_words() const;

  int rows_;
  int columns_;
  std::shared_ptr<std::byte> memory_;  // shared with the other weights of one mapping
  std::uint32_t* words_;               // inside memory_
};

}  // namespace baton
