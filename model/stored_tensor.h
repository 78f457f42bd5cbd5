#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/element_type.h"
#include "model/file_error.h"

namespace baton {

// One tensor where it lies in a mapped file.
struct StoredTensor {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<std::uint64_t> dimensions;  // outermost first, whatever the file's order
  std::string_view bytes;                 // owned by the mapped file
  std::uint64_t offset = 0;               // of `bytes` in the file
  std::string path;                       // of the file

  FilePlace Place() const { return {path, "tensor '" + Printable(name) + "'", offset}; }
};

}  // namespace baton
