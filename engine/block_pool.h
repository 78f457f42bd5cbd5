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

// A pin on a list of blocks, in sequence order. Move-only; destruction unpins. A block with several
// leases returns to the pool when the last one goes: the request and a transfer in flight each hold
// their own.
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
  // When the first of these blocks was taken from the pool, counted in leases; no two leases of a
  // pool's life share it.
  std::uint64_t generation() const { return generation_; }

  // A second pin on the same blocks.
  BlockLease Share() const;
  // Takes over the blocks of `more`, behind its own. Both must be of one pool.
  void Append(BlockLease more);
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

// Hands out the 16-token blocks of the KV pool by number; the memory itself is the backend's.
//
// A block is free or leased, never both. Blocks reach callers only through BlockLease.
//
// Not thread-safe: used only by the engine thread.
class BlockPool {
 public:
  explicit BlockPool(int blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int total() const { return static_cast<int>(pins_.size()); }
  int free() const { return static_cast<int>(free_.size()); }

  // `count` blocks, or nothing at all.
  std::optional<BlockLease> Lease(int count);

  // free + leased = total, no block in two places, every free block unpinned. INTERNAL naming the
  // first block that breaks a rule.
  absl::Status CheckInvariants() const;

 private:
  friend class BlockLease;
  void Pin(BlockId block);
  void Unpin(BlockId block);

  std::vector<std::uint32_t> pins_;  // [blocks] leases that hold the block
  std::vector<BlockId>
      free_;  // last in, first out: a block that is still in the processor's caches comes first
  std::uint64_t generation_ = 0;
};

}  // namespace baton
