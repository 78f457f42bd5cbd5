#include "model/element_type.h"

#include "common/check.h"

namespace baton {

std::optional<ElementType> ElementTypeFromGguf(std::uint32_t id) {
  switch (const auto type = static_cast<ElementType>(id); type) {
    case ElementType::kF32:
    case ElementType::kF16:
    case ElementType::kQ4_0:
    case ElementType::kQ4_1:
    case ElementType::kQ5_0:
    case ElementType::kQ5_1:
    case ElementType::kQ8_0:
    case ElementType::kQ4_K:
    case ElementType::kQ5_K:
    case ElementType::kQ6_K:
    case ElementType::kBF16:
      return type;
  }
  return std::nullopt;
}

BlockFormat FormatOf(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return {.values = 1, .bytes = 4};
    case ElementType::kF16:
    case ElementType::kBF16:
      return {.values = 1, .bytes = 2};
    case ElementType::kQ4_0:
      return {.values = 32, .bytes = 18};
    case ElementType::kQ4_1:
      return {.values = 32, .bytes = 20};
    case ElementType::kQ5_0:
      return {.values = 32, .bytes = 22};
    case ElementType::kQ5_1:
      return {.values = 32, .bytes = 24};
    case ElementType::kQ8_0:
      return {.values = 32, .bytes = 34};
    case ElementType::kQ4_K:
      return {.values = 256, .bytes = 144};
    case ElementType::kQ5_K:
      return {.values = 256, .bytes = 176};
    case ElementType::kQ6_K:
      return {.values = 256, .bytes = 210};
  }
  CheckFailed(__FILE__, __LINE__, "an ElementType that is not in the enumeration");
}

std::string_view NameOf(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return "F32";
    case ElementType::kF16:
      return "F16";
    case ElementType::kQ4_0:
      return "Q4_0";
    case ElementType::kQ4_1:
      return "Q4_1";
    case ElementType::kQ5_0:
      return "Q5_0";
    case ElementType::kQ5_1:
      return "Q5_1";
    case ElementType::kQ8_0:
      return "Q8_0";
    case ElementType::kQ4_K:
      return "Q4_K";
    case ElementType::kQ5_K:
      return "Q5_K";
    case ElementType::kQ6_K:
      return "Q6_K";
    case ElementType::kBF16:
      return "BF16";
  }
  CheckFailed(__FILE__, __LINE__, "an ElementType that is not in the enumeration");
}

}  // namespace baton
