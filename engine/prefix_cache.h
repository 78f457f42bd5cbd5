#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/block_hash.h"
#include "engine/block_pool.h"
#include "engine/cache_observer.h"

namespace baton {

// Finds the blocks that already hold the KV of a prompt's beginning.
//
// Every full block whose values are final may be registered, under the hash of its tokens and of
// all before them. It stays when nobody pins it, until the pool needs it: least recently used
// first, and of one chain the end before its beginning, so that a cached block always has its
// parent in the cache.
//
// Owns no block: it knows the blocks of one pool, which must outlive it, as must the observer.
//
// Not thread-safe: used only by the engine thread.
class PrefixCache final : public BlockKeeper {
 public:
  // A null observer hears nothing.
  explicit PrefixCache(BlockPool& pool, CacheObserver* observer = nullptr);
  ~PrefixCache() override;
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The cached blocks of the longest known beginning of `tokens`, in order. `hashes` are those of
  // the full blocks of `tokens`; the token ids are compared as well. Pins nothing: the answer holds
  // until the next change of the pool.
  std::vector<BlockId> Find(std::span<const PrefixHash> hashes,
                            std::span<const TokenId> tokens) const;

  // Block `index` of `lease` holds the final values of tokens [16 * index, 16 * (index + 1)) of
  // `tokens`, whose hashes are `hashes`; those before it were registered from the same lease. When
  // another block holds the same, the lease gets that one instead of its own.
  void Register(BlockLease& lease,
                int index,
                std::span<const PrefixHash> hashes,
                std::span<const TokenId> tokens);

  int size() const { return static_cast<int>(by_hash_.size()); }  // blocks, pinned ones included

  // Every cached block has its parent in the cache, is known by its hash, and is kept or pinned.
  absl::Status CheckInvariants() const;

  // BlockKeeper, for the pool.
  bool Keep(BlockId block) override;
  void OnPinned(BlockId block) override;
  std::vector<BlockId> GiveUp() override;

 private:
  struct Node {
    bool cached = false;
    PrefixHash hash;
    std::array<TokenId, kBlockTokens> tokens;
    std::optional<BlockId> parent;
    std::vector<BlockId> children;
    bool idle = false;                        // nobody pins it
    std::list<BlockId>::iterator idle_place;  // when idle
  };

  Node& NodeOf(BlockId block) { return nodes_.at(block.value()); }
  const Node& NodeOf(BlockId block) const { return nodes_.at(block.value()); }
  std::optional<BlockId> Lookup(const PrefixHash& hash, std::span<const TokenId> tokens) const;
  void Forget(BlockId block, std::vector<BlockId>& given_up);

  BlockPool& pool_;
  CacheObserver* const observer_;  // not owned; may be null
  std::vector<Node> nodes_;        // [blocks of the pool]
  absl::flat_hash_map<PrefixHash, BlockId> by_hash_;
  std::list<BlockId> idle_;  // least recently used first
};

}  // namespace baton
