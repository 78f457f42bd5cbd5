#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/element_type.h"

namespace baton {

// Composes a GGUF v3 file in memory. The layout is that of model/gguf_file.h.
//
// Not thread-safe.
class GgufWriter {
 public:
  void PutCount(std::string_view key, std::uint32_t value);
  void PutFloat(std::string_view key, float value);
  void PutBool(std::string_view key, bool value);
  void PutString(std::string_view key, std::string_view value);
  void PutStrings(std::string_view key, const std::vector<std::string>& values);
  void PutIntegers(std::string_view key, const std::vector<std::int32_t>& values);

  // A value as raw bytes behind its type number; for files that are to be wrong.
  void PutRaw(std::string_view key, std::uint32_t type, std::string_view bytes);

  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dimensions;  // outermost first
    ElementType type = ElementType::kF32;
    std::string bytes;
  };
  void AddTensor(Tensor tensor) { tensors_.push_back(std::move(tensor)); }

  std::string Compose() const;

 private:
  std::string metadata_;
  std::uint64_t keys_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace baton
