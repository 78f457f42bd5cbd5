#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "baton/v1/worker.pb.h"
#include "router/prefix_index.h"
#include "router/worker_slot.h"

namespace baton {

// [tier] by v1::KvTier, whose values go from the quickest tier to the slowest.
inline constexpr std::size_t kKvTiers = v1::KvTier_ARRAYSIZE;
template <typename T>
using PerTier = std::array<T, kKvTiers>;
static_assert(v1::KV_TIER_DEVICE == 0 && v1::KV_TIER_DEVICE < v1::KV_TIER_HOST &&
              v1::KV_TIER_HOST < v1::KV_TIER_DISK);

// Leading blocks of a prompt that a worker holds without a gap.
struct HeldRun {
  std::uint32_t blocks = 0;
  PerTier<std::uint32_t> in_tier{};  // of these, by the quickest tier that has a block
};
// [tier] the run of blocks that are in this tier or a quicker one: none is shorter than the one
// before it.
using HeldRuns = PerTier<HeldRun>;

// What of one prompt the workers hold. Reused from request to request: it allocates only to grow.
// Not thread-safe.
struct TieredMatches {
  PrefixMatches device;
  std::vector<HeldRuns> runs;  // [slot] of all workers; empty when the device's say all

  // Null when the worker can have no more than what is on its device.
  const HeldRuns* beyond_device(WorkerSlot worker) const {
    if (worker.value() >= runs.size()) {
      return nullptr;
    }
    const HeldRuns& held = runs[worker.value()];
    return held.back().blocks > held.front().blocks ? &held : nullptr;
  }
  // Leading blocks in whichever tier.
  std::uint32_t of(WorkerSlot worker) const {
    const HeldRuns* held = beyond_device(worker);
    return held == nullptr ? device.of(worker) : held->back().blocks;
  }
};

// Which worker holds which block of KV, and in which tiers: a PrefixIndex for each of them.
//
// Bounded tier by tier, so that what disks hold takes no room from what devices hold. While no
// worker reports another tier than its device, a look-up is the one in that tier's index and costs
// the same.
//
// Thread-safe, as PrefixIndex is. A block that moves from one tier to another may be missed by a
// look-up at that very moment.
class TieredIndex {
 public:
  struct Options {
    std::size_t most_entries = 16 << 20;  // pairs of block and worker, in each tier
  };
  struct Stats {
    // Sums over the tiers; see PrefixIndex::Stats. A block in two tiers counts twice.
    std::size_t entries = 0;
    std::size_t blocks = 0;
    std::size_t bytes = 0;
    std::uint64_t left_out = 0;
    PerTier<PrefixIndex::Stats> tiers{};
  };

  explicit TieredIndex(const Options& options);

  // Of a hash that is there (is not there) in this tier already: nothing.
  void Add(v1::KvTier tier, WorkerSlot worker, std::span<const PrefixHash> hashes);
  void Remove(v1::KvTier tier, WorkerSlot worker, std::span<const PrefixHash> hashes);
  // Everything of this worker in the tier; and in all of them.
  void Clear(v1::KvTier tier, WorkerSlot worker);
  void Clear(WorkerSlot worker);

  // `hashes` are those of the full blocks of a prompt, in order.
  void Match(std::span<const PrefixHash> hashes, TieredMatches& matches) const;

  Stats stats() const;
  std::size_t entries_of(WorkerSlot worker) const;  // in all tiers

 private:
  const PrefixIndex& device() const { return *tiers_[v1::KV_TIER_DEVICE]; }
  void MatchAll(std::span<const PrefixHash> hashes, TieredMatches& matches) const;

  PerTier<std::unique_ptr<PrefixIndex>> tiers_;  // set once
};

}  // namespace baton
