#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/strong_id.h"

namespace baton {

class BlockPool;

// A pin on a list of blocks, in sequence order. Move-only; destruction unpins, last block first. A
// block with several leases returns to the pool when the last one goes: the request and a transfer
// in flight each hold their own.
//
// Not thread-safe: made, changed and destroyed only on the thread that uses the pool.
class BlockLease {
 public:
  BlockLease() = default;
  ~BlockLease() { Release(); }
  BlockLease(BlockLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        generation_(other.generation_),
        blocks_(std::exchange(other.blocks_, {})) {}
  BlockLease& operator=(BlockLease&& other) noexcept;

  std::span<const BlockId> blocks() const { return blocks_; }
  int size() const { return static_cast<int>(blocks_.size()); }
  // When this lease was made, counted in leases; no two leases of a pool's life share it, but a
  // lease and what was shared from it.
  std::uint64_t generation() const { return generation_; }

  // A second pin on the same blocks.
  BlockLease Share() const;
  // Takes over the blocks of `more`, behind its own. Both must be of one pool.
  void Append(BlockLease more);
  // Holds `block`, which must be pinned or kept, instead of its block at `index`.
  void Replace(int index, BlockId block);
  // Unpins all but the first `count` blocks.
  void Truncate(int count);
  void Release() { Truncate(0); }

 private:
  friend class BlockPool;
  BlockLease(BlockPool* pool, std::uint64_t generation, std::vector<BlockId> blocks)
      : pool_(pool), generation_(generation), blocks_(std::move(blocks)) {}

  BlockPool* pool_ = nullptr;  // not owned, outlives the lease; null when empty
  std::uint64_t generation_ = 0;
  std::vector<BlockId> blocks_;
};

// Whoever wants a block's content kept after the last pin has gone: the prefix cache.
class BlockKeeper {
 public:
  virtual ~BlockKeeper() = default;
  // Nobody pins the block any more. True: it is kept, and counts as free all the same.
  virtual bool Keep(BlockId block) = 0;
  // A kept block is pinned again.
  virtual void OnPinned(BlockId block) = 0;
  // The pool needs a block: gives up the least useful kept one, and every kept one that is worth
  // nothing without it. REQUIRES: one is kept.
  virtual std::vector<BlockId> GiveUp() = 0;
};

// Hands out the 16-token blocks of the KV pool by number; the memory itself is the backend's.
//
// A block is free, leased or kept, never two of these. A kept block has content that somebody may
// ask for again; it is handed out when no free one is left. Blocks reach callers only through
// BlockLease.
//
// Not thread-safe: used only by the engine thread.
class BlockPool {
 public:
  explicit BlockPool(int blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Borrowed; outlives every lease. Null: nothing is kept. Call before the first lease.
  void SetKeeper(BlockKeeper* keeper) { keeper_ = keeper; }

  int total() const { return static_cast<int>(states_.size()); }
  int free() const { return static_cast<int>(free_.size()) + kept_; }  // kept ones among them
  int kept() const { return kept_; }
  bool IsPinned(BlockId block) const { return states_.at(block.value()).pins > 0; }
  bool IsShared(BlockId block) const { return states_.at(block.value()).pins > 1; }

  // `count` blocks with no content, or nothing at all.
  std::optional<BlockLease> Lease(int count);
  // A pin on blocks with content. REQUIRES: each is pinned or kept.
  BlockLease Pin(std::span<const BlockId> blocks);

  // free + leased + kept = total, no block in two places, no pin on a free or kept block. INTERNAL
  // naming the first block that breaks a rule.
  absl::Status CheckInvariants() const;

 private:
  friend class BlockLease;
  struct State {
    std::uint32_t pins = 0;  // leases that hold the block
    bool kept = false;
  };
  void PinOne(BlockId block);
  void Unpin(BlockId block);

  BlockKeeper* keeper_ = nullptr;  // not owned
  std::vector<State> states_;      // [blocks]
  std::vector<BlockId>
      free_;  // last in, first out: a block that is still in the processor's caches comes first
  int kept_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace baton
