#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file.h"
#include "model/stored_tensor.h"

namespace baton {

// A safetensors file: u64 header length, a JSON header of that length, then the data.
//
// The header maps tensor names to {"dtype", "shape", "data_offsets": [begin, end)}, relative to the
// data. Checked: the header fits the file and is at most 100 MB, each range is as long as its shape
// says and inside the data, and all ranges together tile the data without overlap or gap. F32, F16
// and BF16 can be read; any other dtype is refused.
//
// Immutable after construction.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in the data's order
  // Gives away the mapping, which keeps the bytes of all tensors valid.
  MappedFile TakeFile() && { return std::move(file_); }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  absl::Status Parse();

  MappedFile file_;
  std::vector<StoredTensor> tensors_;
};

}  // namespace baton
