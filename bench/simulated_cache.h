#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/block_hash.h"

namespace baton {

// What a worker's prefix cache holds, without the KV: least recently used blocks go first, and of
// one chain the end before its beginning, as in engine/prefix_cache.h. What running requests pin is
// left out: a chain that lost a block meanwhile gets it back when its prompt has been computed.
//
// Not thread-safe.
class SimulatedCache {
 public:
  // nullopt: without bound.
  explicit SimulatedCache(std::optional<std::size_t> most_blocks) : most_blocks_(most_blocks) {}

  bool Holds(const PrefixHash& block) const { return places_.contains(block); }
  // Leading blocks that are there.
  std::size_t Matched(std::span<const PrefixHash> chain) const;

  struct Changes {
    std::vector<PrefixHash> stored;
    std::vector<PrefixHash> removed;  // after that: may hold some that were stored
  };
  // The whole chain was used: it is there afterwards, as far as there is room.
  Changes Use(std::span<const PrefixHash> chain);

  std::size_t size() const { return places_.size(); }  // blocks

 private:
  const std::optional<std::size_t> most_blocks_;
  std::list<PrefixHash> by_use_;  // most recently used first
  absl::flat_hash_map<PrefixHash, std::list<PrefixHash>::iterator> places_;
};

}  // namespace baton
