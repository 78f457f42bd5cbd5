#include "router/prefix_index.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "router/prefix_index_segment.h"
#include "router/prefix_index_sets.h"

namespace baton {
namespace {

using Segment = PrefixSegment;
using Bucket = PrefixBucket;
using Key = PrefixKey;

constexpr std::size_t kBytesPerEntry = 64;  // at most, where there are many
// Blocks ahead of the one that is looked up, whose cache lines are asked for.
constexpr std::size_t kAhead = 12;

// Segments split when most of their entries are there, but not all at once: the directory is good
// for four times as many segments as hold the most entries when full.
int DirectoryDepth(std::size_t most_entries) {
  constexpr std::size_t kQuarter = Segment::kBuckets * Bucket::kEntries / 4;
  return static_cast<int>(std::bit_width(most_entries / kQuarter));
}

WorkerBits BitsOf(std::span<const WorkerSlot> workers) {
  WorkerBits bits;
  for (const WorkerSlot worker : workers) {
    bits.Set(worker.value());
  }
  return bits;
}

}  // namespace

// A directory of segments, each a small hash table. A full segment is split: half of its keys go to
// a new one, and with them half of the directory entries that named it. So the table grows by
// 64 KiB at a time, look-ups go on meanwhile, and no memory is ever taken from under a reader.
class PrefixIndex::Table {
 public:
  explicit Table(const Options& options);

  void Add(WorkerSlot worker, const Key& key);
  void Remove(WorkerSlot worker, const Key& key);
  void Clear(std::span<const WorkerSlot> workers);
  void Match(std::span<const PrefixHash> hashes, PrefixMatches& matches) const;
  void FindHolders(const Key& key,
                   const WorkerBits& among,
                   std::size_t words,
                   WorkerBits& holders) const {
    Intersect(key, among, words, /*known=*/0, holders);
  }
  std::uint32_t slots() const { return slots_.load(std::memory_order_relaxed); }
  Stats stats() const;
  std::size_t entries_of(WorkerSlot worker) const {
    return entries_of_[worker.value()].load(std::memory_order_relaxed);
  }
  void Prefetch(const Key& key) const {
    const std::uint64_t place = key.Place();
    __builtin_prefetch(&SegmentOf(place)->At(place, 0));
  }

 private:
  std::size_t DirectoryIndex(std::uint64_t place) const {
    return depth_ == 0 ? 0 : place >> (64 - depth_);
  }
  Segment* SegmentOf(std::uint64_t place) const {
    return directory_[DirectoryIndex(place)].load(std::memory_order_acquire);
  }
  // False when there is no room. `place` is one of the segment's.
  bool Split(Segment& segment, std::uint64_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(segment.mutex);
  // False when the segment has to be split first.
  bool TryAdd(Segment& segment, std::uint64_t place, WorkerSlot worker, const Key& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(segment.mutex);
  // Stores what became of the set of an entry that is there.
  void Replace(const Segment::Entry& entry, WorkerSets::Word word);
  // Makes `common` those of the first 32 * `words` workers of `wanted` that hold the block, and
  // returns its word; 0: nobody does. When the word is that of the one or two workers that is
  // `known`, `common` is left as it is.
  WorkerSets::Word Intersect(const Key& key,
                             const WorkerBits& wanted,
                             std::size_t words,
                             WorkerSets::Word known,
                             WorkerBits& common) const;
  WorkerSets::Word IntersectEntry(const Segment::Entry& entry,
                                  const Key& key,
                                  const WorkerBits& wanted,
                                  std::size_t words,
                                  WorkerSets::Word known,
                                  WorkerBits& common) const;
  bool TakeEntry(WorkerSlot worker);
  void GiveEntries(WorkerSlot worker, std::uint32_t count);

  const std::size_t most_entries_;
  const int depth_;  // bits of a place that index the directory
  MemoryRoom room_;
  WorkerSets sets_;
  std::vector<std::atomic<Segment*>> directory_;
  PrefixSegments segments_;
  std::atomic<std::size_t> entries_{0};
  std::atomic<std::size_t> blocks_{0};
  std::atomic<std::uint64_t> left_out_{0};
  std::atomic<std::uint32_t> slots_{0};  // one more than the highest that was ever there
  std::array<std::atomic<std::uint32_t>, kMostWorkers> entries_of_{};
};

PrefixIndex::Table::Table(const Options& options)
    : most_entries_(options.most_entries),
      depth_(DirectoryDepth(options.most_entries)),
      room_(kBytesPerEntry * options.most_entries + 8 * sizeof(Segment) + sizeof(Table) +
            (sizeof(directory_[0]) << depth_)),
      sets_(room_),
      directory_(std::size_t{1} << depth_),
      segments_(room_) {
  room_.Take(sizeof(Table) + directory_.size() * sizeof(directory_[0]));
  Segment* first = segments_.New();
  BATON_CHECK(first != nullptr);
  for (std::atomic<Segment*>& entry : directory_) {
    entry.store(first, std::memory_order_release);
  }
}

bool PrefixIndex::Table::Split(Segment& segment, std::uint64_t place) {
  Segment* upper = segment.depth < depth_ ? segments_.New() : nullptr;
  if (upper == nullptr) {
    return false;
  }
  // Nobody changes the new one before the old one is rid of what has moved.
  absl::MutexLock lock(&upper->mutex);
  ++segment.depth;
  upper->depth = segment.depth;
  std::vector<Segment::Entry> moved;
  const int shift = 64 - segment.depth;
  segment.ForEach([&](const Segment::Entry& from) {
    const Key key = from.bucket->KeyOf(from.index);
    if ((key.Place() >> shift & 1) != 0) {
      const std::ptrdiff_t bucket = from.bucket - segment.buckets.data();
      upper->buckets[static_cast<std::size_t>(bucket)].Fill(
          from.index, key, from.word().load(std::memory_order_relaxed));
      moved.push_back(from);
    }
  });
  // Of the directory entries of the old segment, the upper half.
  const std::size_t count = std::size_t{1} << (depth_ - segment.depth);
  const std::size_t begin = (DirectoryIndex(place) & ~(2 * count - 1)) + count;
  for (std::size_t i = begin; i < begin + count; ++i) {
    directory_[i].store(upper, std::memory_order_release);
  }
  // A reader that misses one of these here sees that the directory has changed.
  for (const Segment::Entry& from : moved) {
    from.word().store(0, std::memory_order_release);
  }
  return true;
}

void PrefixIndex::Table::Replace(const Segment::Entry& entry, WorkerSets::Word word) {
  const WorkerSets::Word old = entry.word().load(std::memory_order_relaxed);
  if (word == old) {
    return;
  }
  entry.word().store(word, std::memory_order_release);
  sets_.Release(old);
  if (word == 0) {
    blocks_.fetch_sub(1, std::memory_order_relaxed);
  }
}

bool PrefixIndex::Table::TakeEntry(WorkerSlot worker) {
  if (entries_.fetch_add(1, std::memory_order_relaxed) >= most_entries_) {
    entries_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  entries_of_[worker.value()].fetch_add(1, std::memory_order_relaxed);
  return true;
}

void PrefixIndex::Table::GiveEntries(WorkerSlot worker, std::uint32_t count) {
  entries_.fetch_sub(count, std::memory_order_relaxed);
  entries_of_[worker.value()].fetch_sub(count, std::memory_order_relaxed);
}

bool PrefixIndex::Table::TryAdd(Segment& segment,
                                std::uint64_t place,
                                WorkerSlot worker,
                                const Key& key) {
  const Segment::Entry known = segment.Find(place, key);
  const Segment::Entry entry = known ? known : segment.FindVacancy(place);
  if (!entry) {
    return false;
  }
  const WorkerSets::Word word = known ? known.word().load(std::memory_order_relaxed) : 0;
  if (sets_.Has(word, worker)) {
    return true;
  }
  std::optional<WorkerSets::Word> more;
  if (TakeEntry(worker)) {
    more = sets_.Add(word, worker);
    if (!more.has_value()) {
      GiveEntries(worker, 1);
    }
  }
  if (!more.has_value()) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
  } else if (known) {
    Replace(entry, *more);
  } else {
    entry.bucket->Fill(entry.index, key, *more);
    blocks_.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

void PrefixIndex::Table::Add(WorkerSlot worker, const Key& key) {
  BATON_CHECK(worker.value() < kMostWorkers);
  std::uint32_t slots = slots_.load(std::memory_order_relaxed);
  while (slots <= worker.value() &&
         !slots_.compare_exchange_weak(slots, worker.value() + 1, std::memory_order_relaxed)) {
  }
  const std::uint64_t place = key.Place();
  while (true) {
    Segment* segment = SegmentOf(place);
    absl::MutexLock lock(&segment->mutex);
    if (SegmentOf(place) != segment) {
      continue;  // split since
    }
    if (TryAdd(*segment, place, worker, key)) {
      return;
    }
    if (!Split(*segment, place)) {
      left_out_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
}

void PrefixIndex::Table::Remove(WorkerSlot worker, const Key& key) {
  const std::uint64_t place = key.Place();
  while (true) {
    Segment* segment = SegmentOf(place);
    absl::MutexLock lock(&segment->mutex);
    if (SegmentOf(place) != segment) {
      continue;
    }
    if (const Segment::Entry entry = segment->Find(place, key)) {
      const WorkerSets::Removal removal =
          sets_.Remove(entry.word().load(std::memory_order_relaxed), worker);
      Replace(entry, removal.word);
      GiveEntries(worker, removal.count);
    }
    return;
  }
}

void PrefixIndex::Table::Clear(std::span<const WorkerSlot> workers) {
  std::size_t left = 0;
  for (const WorkerSlot worker : workers) {
    left += entries_of(worker);
  }
  const WorkerBits bits = BitsOf(workers);
  std::size_t begin = 0;
  while (begin < directory_.size() && left > 0) {
    Segment* segment = directory_[begin].load(std::memory_order_acquire);
    absl::MutexLock lock(&segment->mutex);
    // A split since leaves the first of its directory entries as it is.
    segment->ForEach([&](const Segment::Entry& entry) {
      const WorkerSets::Removal removal =
          sets_.Remove(entry.word().load(std::memory_order_relaxed), bits);
      Replace(entry, removal.word);
      left -= removal.count;
      entries_.fetch_sub(removal.count, std::memory_order_relaxed);
    });
    begin += std::size_t{1} << (depth_ - segment->depth);
  }
  for (const WorkerSlot worker : workers) {
    entries_of_[worker.value()].store(0, std::memory_order_relaxed);
  }
}

WorkerSets::Word PrefixIndex::Table::IntersectEntry(const Segment::Entry& entry,
                                                    const Key& key,
                                                    const WorkerBits& wanted,
                                                    std::size_t words,
                                                    WorkerSets::Word known,
                                                    WorkerBits& common) const {
  // Again when another thread has changed the entry, or a neighbour, in the meantime.
  while (true) {
    const std::uint32_t version = entry.bucket->version.load(std::memory_order_acquire);
    const WorkerSets::Word word = entry.word().load(std::memory_order_acquire);
    if (word == 0 || !entry.bucket->Holds(entry.index, key)) {
      return 0;
    }
    bool sound = word == known && !WorkerSets::IsStored(word);
    if (!sound) {
      std::fill_n(common.words.begin(), words, 0);
      sound = sets_.Intersect(word, wanted, words, common,
                              [&] { return entry.word().load(std::memory_order_acquire) == word; });
    }
    if (sound && entry.bucket->version.load(std::memory_order_acquire) == version) {
      return word;
    }
  }
}

WorkerSets::Word PrefixIndex::Table::Intersect(const Key& key,
                                               const WorkerBits& wanted,
                                               std::size_t words,
                                               WorkerSets::Word known,
                                               WorkerBits& common) const {
  const std::uint64_t place = key.Place();
  while (true) {
    Segment* segment = SegmentOf(place);
    for (std::size_t probe = 0; probe < Segment::kWindow; ++probe) {
      Bucket& bucket = segment->At(place, probe);
      for (std::size_t i = 0; i < Bucket::kEntries; ++i) {
        if (bucket.key_low[i].load(std::memory_order_acquire) != key.low) {
          continue;
        }
        const WorkerSets::Word word =
            IntersectEntry({&bucket, i}, key, wanted, words, known, common);
        if (word != 0) {
          return word;
        }
      }
    }
    if (SegmentOf(place) == segment) {
      std::fill_n(common.words.begin(), words, 0);
      return 0;
    }
  }
}

void PrefixIndex::Table::Match(std::span<const PrefixHash> hashes, PrefixMatches& matches) const {
  const std::uint32_t slots = slots_.load(std::memory_order_relaxed);
  const std::size_t words = (slots + 31) / 32;
  matches.blocks.assign(slots, 0);
  for (std::size_t i = 0; i < std::min(kAhead, hashes.size()); ++i) {
    Prefetch(Key::Of(hashes[i]));
  }
  WorkerBits holders;  // of every block so far
  WorkerBits common;
  std::fill_n(holders.words.begin(), words, ~std::uint32_t{0});
  const auto end_at = [&](std::size_t word, std::uint32_t bits, std::size_t blocks) {
    for (; bits != 0; bits &= bits - 1) {
      const std::size_t slot = 32 * word + static_cast<std::size_t>(std::countr_zero(bits));
      if (slot < slots) {
        matches.blocks[slot] = static_cast<std::uint32_t>(blocks);
      }
    }
  };
  WorkerSets::Word last = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (i + kAhead < hashes.size()) {
      Prefetch(Key::Of(hashes[i + kAhead]));
    }
    const WorkerSets::Word word = Intersect(Key::Of(hashes[i]), holders, words, last, common);
    if (word != 0 && word == last && !WorkerSets::IsStored(word)) {
      continue;  // the same one or two workers as before, so nobody drops out
    }
    last = word;
    std::uint32_t any = 0;
    std::uint32_t changes = 0;
    for (std::size_t w = 0; w < words; ++w) {
      any |= common.words[w];
      changes |= holders.words[w] ^ common.words[w];
    }
    if (changes != 0 && i > 0) {
      for (std::size_t w = 0; w < words; ++w) {
        end_at(w, holders.words[w] & ~common.words[w], i);
      }
    }
    if (any == 0) {
      return;
    }
    std::copy_n(common.words.begin(), words, holders.words.begin());
  }
  for (std::size_t w = 0; w < words; ++w) {
    end_at(w, hashes.empty() ? 0 : holders.words[w], hashes.size());
  }
}

PrefixIndex::Stats PrefixIndex::Table::stats() const {
  return {.entries = entries_.load(std::memory_order_relaxed),
          .blocks = blocks_.load(std::memory_order_relaxed),
          .bytes = room_.taken_bytes(),
          .left_out = left_out_.load(std::memory_order_relaxed)};
}

PrefixIndex::PrefixIndex(const Options& options) : table_(std::make_unique<Table>(options)) {}
PrefixIndex::~PrefixIndex() = default;

void PrefixIndex::Add(WorkerSlot worker, std::span<const PrefixHash> hashes) {
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (i + kAhead < hashes.size()) {
      table_->Prefetch(Key::Of(hashes[i + kAhead]));
    }
    table_->Add(worker, Key::Of(hashes[i]));
  }
}

void PrefixIndex::Remove(WorkerSlot worker, std::span<const PrefixHash> hashes) {
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (i + kAhead < hashes.size()) {
      table_->Prefetch(Key::Of(hashes[i + kAhead]));
    }
    table_->Remove(worker, Key::Of(hashes[i]));
  }
}

void PrefixIndex::Clear(std::span<const WorkerSlot> workers) {
  table_->Clear(workers);
}

void PrefixIndex::Match(std::span<const PrefixHash> hashes, PrefixMatches& matches) const {
  table_->Match(hashes, matches);
}

void PrefixIndex::FindHolders(const PrefixHash& hash,
                              const WorkerBits& among,
                              std::size_t words,
                              WorkerBits& holders) const {
  table_->FindHolders(Key::Of(hash), among, words, holders);
}

void PrefixIndex::Prefetch(const PrefixHash& hash) const {
  table_->Prefetch(Key::Of(hash));
}

std::uint32_t PrefixIndex::slots() const {
  return table_->slots();
}

PrefixIndex::Stats PrefixIndex::stats() const {
  return table_->stats();
}

std::size_t PrefixIndex::entries_of(WorkerSlot worker) const {
  return table_->entries_of(worker);
}

}  // namespace baton
