#include "engine/memory_needs.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/bfloat16.h"

namespace baton {

MemoryNeeds NeedsOf(const ModelConfig& config, int rows, int logit_rows) {
  const auto size = [](int value) { return static_cast<std::size_t>(value); };
  const std::size_t hidden = size(config.hidden);
  const std::size_t projected = size(config.heads + 2 * config.kv_heads) * size(config.head_dim);
  const std::size_t attended = size(config.heads) * size(config.head_dim);
  const std::size_t feed_forward = size(config.feed_forward);
  const std::size_t vocabulary = size(config.vocabulary);

  const std::size_t of_layer = (projected + attended + 3 * feed_forward) * hidden;
  const std::size_t matrices =
      size(config.layers) * of_layer + (config.tied_head ? 1 : 2) * vocabulary * hidden;
  const std::size_t norms = (2 * size(config.layers) + 1) * hidden;
  const std::size_t angles = size(config.context_tokens) * size(config.head_dim);
  const std::size_t of_row =
      (hidden + projected) * sizeof(float) + (hidden + attended + feed_forward) * sizeof(BFloat16);
  return {.weights = matrices * sizeof(BFloat16) + (norms + angles) * sizeof(float),
          .activations = size(rows) * of_row + size(logit_rows) * vocabulary * sizeof(float)};
}

std::string Describe(const MemoryNeeds& needs) {
  return absl::StrCat("weights ", BytesText(needs.weights), ", activations ",
                      BytesText(needs.activations), ", KV pool ", BytesText(needs.kv_pool),
                      ", workspace ", BytesText(needs.workspace));
}

std::string BytesText(std::size_t bytes) {
  constexpr double kMebi = 1 << 20;
  constexpr double kGibi = 1 << 30;
  const auto number = static_cast<double>(bytes);
  if (number >= kGibi) {
    return absl::StrFormat("%.1f GiB", number / kGibi);
  }
  return number >= kMebi ? absl::StrFormat("%.1f MiB", number / kMebi)
                         : absl::StrCat(bytes, " bytes");
}

}  // namespace baton
