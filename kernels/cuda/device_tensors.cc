#include "kernels/cuda/device_tensors.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton::cuda {
namespace {

std::byte* Bytes(void* data) {
  return static_cast<std::byte*>(data);
}

// Uploads `rows` rows of `row_bytes` bytes in pieces of whole rows: fill(first row, rows, bytes).
template <typename Fill>
absl::Status UploadRows(
    UploadRing& ring, std::byte* destination, int rows, std::size_t row_bytes, const Fill& fill) {
  const int rows_at_once =
      static_cast<int>(std::min(ring.piece_bytes() / row_bytes, static_cast<std::size_t>(rows)));
  if (rows_at_once == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a row of ", row_bytes, " bytes is too long"));
  }
  for (int first = 0; first < rows; first += rows_at_once) {
    const int count = std::min(rows_at_once, rows - first);
    RETURN_IF_ERROR(ring.Upload(destination + static_cast<std::size_t>(first) * row_bytes,
                                static_cast<std::size_t>(count) * row_bytes,
                                [&](std::span<std::byte> out) { return fill(first, count, out); }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaPackedWeight>> CudaPackedWeight::Create(
    Device& device, UploadRing& ring, int rows, int columns, const RowReader& reader) {
  const auto width = static_cast<std::size_t>(columns);
  ASSIGN_OR_RETURN(DeviceBuffer<BFloat16> memory,
                   DeviceBuffer<BFloat16>::Create(device, static_cast<std::size_t>(rows) * width));
  std::vector<float> values;
  const absl::Status uploaded = UploadRows(
      ring, Bytes(memory.data()), rows, width * sizeof(BFloat16),
      [&](int first, int count, std::span<std::byte> out) -> absl::Status {
        values.resize(static_cast<std::size_t>(count) * width);
        RETURN_IF_ERROR(reader(first, count, values));
        std::ranges::transform(values, reinterpret_cast<BFloat16*>(out.data()), ToBFloat16);
        return absl::OkStatus();
      });
  RETURN_IF_ERROR(uploaded);
  return std::unique_ptr<CudaPackedWeight>(new CudaPackedWeight(std::move(memory), rows, columns));
}

absl::StatusOr<std::unique_ptr<CudaRopeTable>> CudaRopeTable::Create(
    Device& device, UploadRing& ring, std::span<const double> frequencies, int positions) {
  const std::size_t row = 2 * frequencies.size();
  ASSIGN_OR_RETURN(DeviceBuffer<float> memory,
                   DeviceBuffer<float>::Create(device, static_cast<std::size_t>(positions) * row));
  RETURN_IF_ERROR(UploadRows(ring, Bytes(memory.data()), positions, row * sizeof(float),
                             [&](int first, int count, std::span<std::byte> out) {
                               float* to = reinterpret_cast<float*>(out.data());
                               for (int position = first; position < first + count; ++position) {
                                 for (const double frequency : frequencies) {
                                   *to++ = static_cast<float>(std::cos(position * frequency));
                                   *to++ = static_cast<float>(std::sin(position * frequency));
                                 }
                               }
                               return absl::OkStatus();
                             }));
  return std::unique_ptr<CudaRopeTable>(
      new CudaRopeTable(std::move(memory), static_cast<int>(row), positions));
}

}  // namespace baton::cuda
