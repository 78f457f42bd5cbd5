#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/strong_id.h"
#include "model/tokenizer_data.h"

namespace baton {

// The merges of a byte-level BPE vocabulary, by token ids.
//
// Immutable after construction and therefore thread-safe.
class MergeTable {
 public:
  // INVALID_ARGUMENT when two tokens have the same text, or a merge is there twice, is of or makes
  // what is no token, or makes a control token.
  static absl::StatusOr<std::unique_ptr<MergeTable>> Create(const TokenizerData& data);

  // Appends the tokens of `piece`: one for each byte, then the merge of lowest rank, leftmost
  // first, until none applies. A byte without a token becomes the unknown token or is left out, and
  // its neighbours can merge. O(n log n). REQUIRES: piece.size() < 2^32.
  void Apply(std::string_view piece, std::vector<TokenId>& ids) const;

 private:
  struct Merge {
    std::uint32_t rank = 0;
    TokenId result;
  };

  MergeTable() = default;

  const Merge* Find(TokenId left, TokenId right) const;

  std::array<std::optional<TokenId>, 256> byte_tokens_;
  std::optional<TokenId> unknown_;
  absl::flat_hash_map<std::pair<TokenId, TokenId>, Merge> merges_;
};

}  // namespace baton
