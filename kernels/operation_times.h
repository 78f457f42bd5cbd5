#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "common/clock.h"

namespace baton {

// The operations of a Backend that take time in a step.
enum class Operation {
  kEmbedTokens,
  kRmsNorm,
  kMatMul,
  kGatedMatMul,
  kRotateAndWriteKv,
  kPagedAttention,
  kSelectTokens,
  kCopy,
  kSynchronize,
};

// Names in metrics and traces; by the value of Operation.
inline constexpr std::array<std::string_view, 9> kOperationNames = {
    "embed_tokens",    "rms_norm",      "mat_mul", "gated_mat_mul", "rotate_and_write_kv",
    "paged_attention", "select_tokens", "copy",    "synchronize"};

inline std::string_view OperationName(Operation operation) {
  return kOperationNames[static_cast<std::size_t>(operation)];
}

// What a number of calls took, added up by operation. Wall time of the calling thread.
class OperationTimes {
 public:
  struct Sum {
    int calls = 0;
    Duration time{};
  };

  Sum& operator[](Operation operation) { return sums_[static_cast<std::size_t>(operation)]; }
  const Sum& operator[](Operation operation) const {
    return sums_[static_cast<std::size_t>(operation)];
  }

  // [operations] by the value of Operation.
  const std::array<Sum, kOperationNames.size()>& sums() const { return sums_; }

  Duration total() const {
    Duration total{};
    for (const Sum& sum : sums_) {
      total += sum.time;
    }
    return total;
  }

 private:
  std::array<Sum, kOperationNames.size()> sums_{};
};

// One call of an operation.
struct OperationCall {
  Operation operation = Operation::kEmbedTokens;
  int rows = 0;            // T of the call; 0 for copy and synchronize
  int weight_rows = 0;     // mat_mul and gated_mat_mul: N
  int weight_columns = 0;  // likewise: K
  TimePoint start;
  Duration duration{};
};

}  // namespace baton
