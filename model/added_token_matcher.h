#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/strong_id.h"

namespace baton {

// Finds tokens that are recognised in text as they are written, before any merging.
//
// Filled by Add, immutable afterwards.
class AddedTokenMatcher {
 public:
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    TokenId token;
  };

  // REQUIRES: `text` is not empty.
  void Add(std::string_view text, TokenId token);

  // The leftmost match at or after `from`, the longest of those that begin there.
  std::optional<Match> Find(std::string_view text, std::size_t from) const;

 private:
  using Node = std::uint32_t;

  // A trie: node 0 is the root.
  absl::flat_hash_map<std::pair<Node, unsigned char>, Node> children_;
  std::vector<std::optional<TokenId>> tokens_{std::nullopt};  // the token that ends at a node
};

}  // namespace baton
