#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer_data.h"

namespace baton {

// Cuts text into the pieces within which BPE merges.
//
// Immutable after construction and therefore thread-safe.
class PreTokenizer {
 public:
  explicit PreTokenizer(PreTokenizerKind kind);
  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // All of `text`, in order; the views point into it. RESOURCE_EXHAUSTED when the matcher runs out
  // of memory. REQUIRES: `text` is UTF-8.
  absl::StatusOr<std::vector<std::string_view>> Split(std::string_view text) const;

 private:
  struct Pattern;
  std::unique_ptr<const Pattern> pattern_;
};

}  // namespace baton
