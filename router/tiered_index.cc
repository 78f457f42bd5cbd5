#include "router/tiered_index.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "router/prefix_index_sets.h"

namespace baton {
namespace {

// Blocks ahead of the one that is looked up, whose cache lines are asked for.
constexpr std::size_t kAhead = 12;
constexpr std::size_t kSlowest = kKvTiers - 1;

template <typename Visit>
void ForEachBit(std::size_t word, std::uint32_t bits, const Visit& visit) {
  for (; bits != 0; bits &= bits - 1) {
    visit(32 * word + static_cast<std::size_t>(std::countr_zero(bits)));
  }
}

// Follows the runs of all workers from block to block. Work is done for a worker only where its
// run ends or where its blocks begin to be in another tier; all else is done to 32 workers at once,
// as long as one of them is followed.
//
// Not thread-safe: lives for one look-up.
class RunCounter {
 public:
  // `runs` are those of all slots, all 0.
  explicit RunCounter(std::vector<HeldRuns>& runs) : runs_(runs), words_((runs.size() + 31) / 32) {
    for (WorkerBits& going_on : going_on_) {
      std::fill_n(going_on.words.begin(), words_, ~std::uint32_t{0});
      // Nobody counts who gets a slot from now on.
      if (runs.size() % 32 != 0) {
        going_on.words[words_ - 1] = (std::uint32_t{1} << (runs.size() % 32)) - 1;
      }
    }
    std::iota(active_.begin(), active_.begin() + static_cast<std::ptrdiff_t>(words_), 0);
    active_count_ = words_;
  }

  std::size_t words() const { return words_; }
  // Words of bits in which some run goes on. A word that is no longer among them never is again,
  // and what stands in it has no meaning.
  std::span<const std::uint32_t> active() const { return {active_.data(), active_count_}; }
  // Those that a further block lengthens the run of.
  const WorkerBits& going_on() const { return going_on_[kSlowest]; }

  // The next block is held by these: each in one tier, the quickest that it has it in. False when
  // no run goes on.
  bool Take(const PerTier<WorkerBits>& found) {
    std::size_t still_active = 0;
    for (const std::uint32_t w : active()) {
      std::uint32_t held = found[v1::KV_TIER_DEVICE].words[w];
      if ((going_on_[kSlowest].words[w] & ~held) == 0 && InSlower(w) == 0) {
        active_[still_active++] = w;
        continue;  // no run ends, and all blocks are where the last ones were
      }
      for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
        held |= found[tier].words[w];
        End(tier, w, going_on_[tier].words[w] & ~held);
        going_on_[tier].words[w] &= held;
      }
      for (std::size_t tier = 1; tier < kKvTiers; ++tier) {
        NoteChanges(tier, w, found[tier].words[w] & going_on_[kSlowest].words[w]);
      }
      if (going_on_[kSlowest].words[w] != 0) {
        active_[still_active++] = w;
      }
    }
    active_count_ = still_active;
    ++blocks_;
    return still_active > 0;
  }

  // There is no further block.
  void End() {
    for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
      for (const std::uint32_t w : active()) {
        End(tier, w, going_on_[tier].words[w]);
      }
    }
  }

 private:
  std::uint32_t InSlower(std::size_t word) const {
    std::uint32_t workers = 0;
    for (std::size_t tier = 1; tier < kKvTiers; ++tier) {
      workers |= inside_[tier].words[word];
    }
    return workers;
  }

  // The runs of this tier end before the block at hand. Until those of the slowest end, which are
  // never the first to, they hold the counts as NoteChanges keeps them.
  void End(std::size_t tier, std::size_t word, std::uint32_t workers) {
    if (blocks_ == 0) {
      return;
    }
    ForEachBit(word, workers, [&](std::size_t slot) {
      const std::uint32_t bit = std::uint32_t{1} << (slot % 32);
      PerTier<std::uint32_t> in_tier = runs_[slot][kSlowest].in_tier;
      std::uint32_t slower = 0;
      for (std::size_t t = 1; t < kKvTiers; ++t) {
        in_tier[t] += (inside_[t].words[word] & bit) != 0 ? blocks_ : 0;
        slower += in_tier[t];
      }
      in_tier[v1::KV_TIER_DEVICE] = blocks_ - slower;
      runs_[slot][tier] = {.blocks = blocks_, .in_tier = in_tier};
    });
  }

  // A stretch of blocks in one tier counts as where it ends less where it begins. While it goes on
  // the count is short of its end: below 0, which unsigned numbers bear.
  void NoteChanges(std::size_t tier, std::size_t word, std::uint32_t now) {
    const std::uint32_t before = inside_[tier].words[word];
    // Whose run has ended has its counts already.
    ForEachBit(word, before & ~now & going_on_[kSlowest].words[word],
               [&](std::size_t slot) { runs_[slot][kSlowest].in_tier[tier] += blocks_; });
    ForEachBit(word, now & ~before,
               [&](std::size_t slot) { runs_[slot][kSlowest].in_tier[tier] -= blocks_; });
    inside_[tier].words[word] = now;
  }

  std::vector<HeldRuns>& runs_;
  const std::size_t words_;
  std::array<std::uint32_t, kMostWorkers / 32> active_{};
  std::size_t active_count_ = 0;
  std::uint32_t blocks_ = 0;        // before the one at hand
  PerTier<WorkerBits> going_on_{};  // [tier] whose runs of it have no gap so far
  PerTier<WorkerBits> inside_{};    // [tier] whose last block was there, and in no quicker one
};

}  // namespace

TieredIndex::TieredIndex(const Options& options) {
  for (std::unique_ptr<PrefixIndex>& tier : tiers_) {
    tier =
        std::make_unique<PrefixIndex>(PrefixIndex::Options{.most_entries = options.most_entries});
  }
}

void TieredIndex::Add(v1::KvTier tier, WorkerSlot worker, std::span<const PrefixHash> hashes) {
  tiers_[tier]->Add(worker, hashes);
}

void TieredIndex::Remove(v1::KvTier tier, WorkerSlot worker, std::span<const PrefixHash> hashes) {
  tiers_[tier]->Remove(worker, hashes);
}

void TieredIndex::Clear(v1::KvTier tier, WorkerSlot worker) {
  tiers_[tier]->Clear(worker);
}

void TieredIndex::Clear(WorkerSlot worker) {
  for (const std::unique_ptr<PrefixIndex>& tier : tiers_) {
    tier->Clear(worker);
  }
}

void TieredIndex::Match(std::span<const PrefixHash> hashes, TieredMatches& matches) const {
  matches.runs.clear();
  if (std::all_of(tiers_.begin() + 1, tiers_.end(),
                  [](const auto& tier) { return tier->stats().entries == 0; })) {
    device().Match(hashes, matches.device);
  } else {
    MatchAll(hashes, matches);
  }
}

void TieredIndex::MatchAll(std::span<const PrefixHash> hashes, TieredMatches& matches) const {
  std::uint32_t slots = 0;
  PerTier<bool> in_use{};
  for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
    slots = std::max(slots, tiers_[tier]->slots());
    in_use[tier] = tiers_[tier]->stats().entries > 0;
  }
  matches.runs.resize(slots);
  // Tiers that the last block was looked for in: the next ones are likely to be no deeper.
  std::size_t depth = kKvTiers;
  const auto prefetch = [&](std::size_t block) {
    for (std::size_t tier = 0; tier < depth; ++tier) {
      if (in_use[tier] && block < hashes.size()) {
        tiers_[tier]->Prefetch(hashes[block]);
      }
    }
  };
  for (std::size_t i = 0; i < kAhead; ++i) {
    prefetch(i);
  }
  RunCounter counter(matches.runs);
  WorkerBits wanted;  // in no tier so far
  PerTier<WorkerBits> found{};
  bool go_on = true;
  for (std::size_t i = 0; i < hashes.size() && go_on; ++i) {
    prefetch(i + kAhead);
    std::uint32_t any_wanted = 1;
    depth = 0;
    for (const std::uint32_t w : counter.active()) {
      wanted.words[w] = counter.going_on().words[w];
    }
    for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
      if (!in_use[tier] || any_wanted == 0) {
        for (const std::uint32_t w : counter.active()) {
          found[tier].words[w] = 0;
        }
        continue;
      }
      depth = tier + 1;
      tiers_[tier]->FindHolders(hashes[i], wanted, counter.words(), found[tier]);
      any_wanted = 0;
      for (const std::uint32_t w : counter.active()) {
        wanted.words[w] &= ~found[tier].words[w];
        any_wanted |= wanted.words[w];
      }
    }
    go_on = counter.Take(found);
  }
  if (go_on) {
    counter.End();
  }
  matches.device.blocks.resize(slots);
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    matches.device.blocks[slot] = matches.runs[slot][v1::KV_TIER_DEVICE].blocks;
  }
}

TieredIndex::Stats TieredIndex::stats() const {
  Stats all;
  for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
    const PrefixIndex::Stats stats = tiers_[tier]->stats();
    all.entries += stats.entries;
    all.blocks += stats.blocks;
    all.bytes += stats.bytes;
    all.left_out += stats.left_out;
    all.tiers[tier] = stats;
  }
  return all;
}

std::size_t TieredIndex::entries_of(WorkerSlot worker) const {
  std::size_t entries = 0;
  for (const std::unique_ptr<PrefixIndex>& tier : tiers_) {
    entries += tier->entries_of(worker);
  }
  return entries;
}

}  // namespace baton
