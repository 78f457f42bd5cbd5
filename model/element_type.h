#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace baton {

// How the values of a tensor are stored. The numbers are GGUF's own type ids.
enum class ElementType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

// Values are stored in blocks of a fixed size; a plain type has blocks of one value.
struct BlockFormat {
  std::size_t values = 0;
  std::size_t bytes = 0;
};

// nullopt for an id that is not in ElementType.
std::optional<ElementType> ElementTypeFromGguf(std::uint32_t id);

BlockFormat FormatOf(ElementType type);

// "F32", "Q4_1", ...
std::string_view NameOf(ElementType type);

// Decodes whole blocks to float. Each value is computed in float32 by the format's own formula, so
// that it equals what other readers of the format get. REQUIRES: bytes.size() and out.size() are
// the same whole number of blocks.
void Dequantize(ElementType type, std::string_view bytes, std::span<float> out);

}  // namespace baton
