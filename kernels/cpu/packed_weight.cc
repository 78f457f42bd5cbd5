#include "kernels/cpu/packed_weight.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/validate.h"

namespace baton {
namespace {

std::uint32_t PackWord(float even, float odd) {
  return ToBFloat16(even).bits | static_cast<std::uint32_t>(ToBFloat16(odd).bits) << 16;
}

}  // namespace

CpuPackedWeight::CpuPackedWeight(int rows, int columns, HugePageArena& arena)
    : rows_(rows), columns_(columns), memory_(arena.Allocate(panel_bytes())) {
  words_ = reinterpret_cast<std::uint32_t*>(memory_.get());
}

int CpuPackedWeight::panels() const {
  return (rows_ + kPanelColumns - 1) / kPanelColumns;
}

std::size_t CpuPackedWeight::panel_words() const {
  return static_cast<std::size_t>(columns_) / 2 * kPanelColumns;
}

const std::uint32_t* CpuPackedWeight::panel(int index) const {
  return words_ + static_cast<std::size_t>(index) * panel_words();
}

absl::StatusOr<std::unique_ptr<PackedWeight>> CpuPackedWeight::Create(
    int rows,
    int columns,
    const RowReader& reader,
    HugePageArena& arena,
    HugePageArena* compact_arena) {
  RETURN_IF_ERROR(ValidateWeightShape(rows, columns));
  std::unique_ptr<CpuPackedWeight> weight(new CpuPackedWeight(rows, columns, arena));
  if (weight->words_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("pack: no memory for a weight of ", weight->bytes(), " bytes"));
  }
  const auto width = static_cast<std::size_t>(columns);
  std::vector<float> values(width * kPanelColumns);
  for (int panel = 0; panel < weight->panels(); ++panel) {
    const int first = panel * kPanelColumns;
    const int count = std::min(kPanelColumns, rows - first);
    std::fill(values.begin(), values.end(), 0.0f);
    RETURN_IF_ERROR(
        reader(first, count, std::span(values).first(width * static_cast<std::size_t>(count))));
    std::uint32_t* out = weight->words_ + static_cast<std::size_t>(panel) * weight->panel_words();
    for (std::size_t k = 0; k < width; k += 2) {
      for (std::size_t column = 0; column < kPanelColumns; ++column) {
        *out++ = PackWord(values[column * width + k], values[column * width + k + 1]);
      }
    }
  }
  if (compact_arena != nullptr) {
    weight->compact_ = CompactWeight::Create(
        std::span(weight->words_, weight->panel_bytes() / sizeof(std::uint32_t)), columns / 2,
        *compact_arena);
  }
  return weight;
}

void CpuPackedWeight::ReadRow(int row, float* out) const {
  const std::uint32_t* word = panel(row / kPanelColumns) + row % kPanelColumns;
  for (int k = 0; k < columns_; k += 2, word += kPanelColumns) {
    out[k] = ToFloat({static_cast<std::uint16_t>(*word)});
    out[k + 1] = ToFloat({static_cast<std::uint16_t>(*word >> 16)});
  }
}

}  // namespace baton
