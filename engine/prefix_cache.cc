#include "engine/prefix_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton {

PrefixCache::PrefixCache(BlockPool& pool, CacheObserver* observer)
    : pool_(pool), observer_(observer), nodes_(static_cast<std::size_t>(pool.total())) {
  pool_.SetKeeper(this);
}

PrefixCache::~PrefixCache() {
  pool_.SetKeeper(nullptr);
}

std::vector<BlockId> PrefixCache::Find(std::span<const PrefixHash> hashes,
                                       std::span<const TokenId> tokens) const {
  std::vector<BlockId> found;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::optional<BlockId> block =
        Lookup(hashes[i], tokens.subspan(i * kBlockTokens, kBlockTokens));
    if (!block.has_value()) {
      break;
    }
    found.push_back(*block);
  }
  return found;
}

std::optional<BlockId> PrefixCache::Lookup(const PrefixHash& hash,
                                           std::span<const TokenId> tokens) const {
  const auto it = by_hash_.find(hash);
  if (it == by_hash_.end() || !std::ranges::equal(NodeOf(it->second).tokens, tokens)) {
    return std::nullopt;
  }
  return it->second;
}

void PrefixCache::Register(BlockLease& lease,
                           int index,
                           std::span<const PrefixHash> hashes,
                           std::span<const TokenId> tokens) {
  const auto i = static_cast<std::size_t>(index);
  const BlockId block = lease.blocks()[i];
  const std::span<const TokenId> own = tokens.subspan(i * kBlockTokens, kBlockTokens);
  if (const auto it = by_hash_.find(hashes[i]); it != by_hash_.end()) {
    // Equal hashes of unequal tokens: the first one stays, this block is simply not cached.
    if (it->second != block && std::ranges::equal(NodeOf(it->second).tokens, own)) {
      lease.Replace(index, it->second);
    }
    return;
  }
  Node& node = NodeOf(block);
  if (node.cached) {
    return;  // under another hash: never, unless hashes collide
  }
  std::optional<BlockId> parent;
  if (index > 0) {
    parent = Lookup(hashes[i - 1], tokens.subspan((i - 1) * kBlockTokens, kBlockTokens));
    if (!parent.has_value()) {
      return;  // its parent was given up or is another's under the same hash
    }
    NodeOf(*parent).children.push_back(block);
  }
  node.cached = true;
  node.hash = hashes[i];
  std::ranges::copy(own, node.tokens.begin());
  node.parent = parent;
  by_hash_[node.hash] = block;
  if (observer_ != nullptr) {
    observer_->OnStored(node.hash);
  }
}

bool PrefixCache::Keep(BlockId block) {
  Node& node = NodeOf(block);
  if (!node.cached) {
    return false;
  }
  node.idle = true;
  // Leases unpin their last block first: the end of a chain stands before its beginning.
  node.idle_place = idle_.insert(idle_.end(), block);
  return true;
}

void PrefixCache::OnPinned(BlockId block) {
  Node& node = NodeOf(block);
  BATON_CHECK(node.cached && node.idle);
  idle_.erase(node.idle_place);
  node.idle = false;
}

std::vector<BlockId> PrefixCache::GiveUp() {
  BATON_CHECK(!idle_.empty());
  std::vector<BlockId> given_up;
  const BlockId block = idle_.front();
  if (const std::optional<BlockId> parent = NodeOf(block).parent; parent.has_value()) {
    std::erase(NodeOf(*parent).children, block);
  }
  Forget(block, given_up);
  return given_up;
}

// Without this block nobody can find those behind it. Pinned ones among them become plain blocks of
// their leases.
void PrefixCache::Forget(BlockId first, std::vector<BlockId>& given_up) {
  std::vector<BlockId> pending = {first};
  while (!pending.empty()) {
    const BlockId block = pending.back();
    pending.pop_back();
    Node& node = NodeOf(block);
    pending.insert(pending.end(), node.children.begin(), node.children.end());
    by_hash_.erase(node.hash);
    if (observer_ != nullptr) {
      observer_->OnRemoved(node.hash);
    }
    if (node.idle) {
      idle_.erase(node.idle_place);
      given_up.push_back(block);
    }
    node = Node();
  }
}

absl::Status PrefixCache::CheckInvariants() const {
  int cached = 0;
  int idle = 0;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.cached) {
      continue;
    }
    ++cached;
    idle += node.idle ? 1 : 0;
    const auto it = by_hash_.find(node.hash);
    if (it == by_hash_.end() || it->second != BlockId(i)) {
      return absl::InternalError(absl::StrCat("cached block ", i, " is not known by its hash"));
    }
    if (node.parent.has_value() &&
        (!NodeOf(*node.parent).cached ||
         std::ranges::count(NodeOf(*node.parent).children, BlockId(i)) != 1)) {
      return absl::InternalError(absl::StrCat("cached block ", i, " has lost its parent"));
    }
    if (node.idle == pool_.IsPinned(BlockId(i))) {
      return absl::InternalError(absl::StrCat("cached block ", i,
                                              " is both idle and pinned, "
                                              "or neither"));
    }
  }
  if (cached != size() || idle != static_cast<int>(idle_.size()) || idle != pool_.kept()) {
    return absl::InternalError(absl::StrCat(cached, " cached blocks, ", size(), " hashes, ", idle,
                                            " idle, ", idle_.size(), " in the list, ", pool_.kept(),
                                            " kept"));
  }
  return absl::OkStatus();
}

}  // namespace baton
