#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/worker_slot.h"

namespace baton {

// Bytes that several owners may take up to a limit. Thread-safe.
class MemoryRoom {
 public:
  explicit MemoryRoom(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // False, and nothing taken, when there is not that much left.
  bool Take(std::size_t bytes);
  std::size_t taken_bytes() const { return taken_bytes_.load(std::memory_order_relaxed); }
  std::size_t limit_bytes() const { return limit_bytes_; }

 private:
  const std::size_t limit_bytes_;
  std::atomic<std::size_t> taken_bytes_{0};
};

// One bit for every slot; bit `slot % 32` of word `slot / 32`.
struct WorkerBits {
  std::array<std::uint32_t, kMostWorkers / 32> words{};

  void Set(std::uint32_t slot) { words[slot / 32] |= std::uint32_t{1} << (slot % 32); }
  bool Has(std::uint32_t slot) const { return (words[slot / 32] >> (slot % 32) & 1) != 0; }
};

// Sets of workers that one 32-bit word stands for, so that an entry of the index has a fixed size:
//
//   0                      nobody
//   1 << 30 | a            one worker
//   2 << 30 | b << 12 | a  two workers
//   3 << 30 | kind << 28 | unit   more: a node in memory that belongs to this
//
// A node is a list of 6, 14 or 30 slots, or a bitmap. Within a node a change is one store of one
// word. A node that gets too small is replaced; its memory is used again for other nodes of its
// kind, and is never given back, so that a reader may look at a node that is no longer its own: the
// node's generation, and the word it came from, tell it so.
//
// Thread-safe in this way: changes of one word come one at a time; any number may read meanwhile.
class WorkerSets {
 public:
  using Word = std::uint32_t;
  struct Removal {
    Word word = 0;
    std::uint32_t count = 0;  // workers that were there
  };

  explicit WorkerSets(MemoryRoom& room);

  // False: the word itself says who it is, and equal words say the same.
  static bool IsStored(Word word) { return word >> 30 == 3; }

  bool Has(Word word, WorkerSlot worker) const;
  // Both give the word to store in the place of `word`. When it is another one, Release the old one
  // after that. nullopt, and no change, when there is no room. REQUIRES: it is not there.
  std::optional<Word> Add(Word word, WorkerSlot worker);
  Removal Remove(Word word, const WorkerBits& workers);
  Removal Remove(Word word, WorkerSlot worker);
  void Release(Word word);

  // Adds to `common` which of the first 32 * `words` workers of `wanted` are in the set. False when
  // the set changed owner meanwhile and `common` is worth nothing: `still` says whether its word
  // is still where it was read.
  template <typename Still>
  bool Intersect(Word word,
                 const WorkerBits& wanted,
                 std::size_t words,
                 WorkerBits& common,
                 const Still& still) const;

 private:
  enum class Kind : std::uint32_t { kList6, kList14, kList30, kBitmap };
  static constexpr int kKinds = 4;
  static constexpr std::uint32_t kUnitWords = 4;  // 16 bytes
  static constexpr std::uint32_t kChunkUnits = 4096;
  static constexpr std::uint32_t kNobody = 0xffff;  // in a list
  static constexpr std::size_t kMostInList = 30;
  static constexpr std::size_t kShrinkBitmapAt = 14;  // workers
  using AtomicWord = std::atomic<std::uint32_t>;
  using Chunk = std::unique_ptr<AtomicWord[]>;
  using Slots = std::vector<std::uint32_t>;

  static constexpr Word kOne = Word{1} << 30;
  static constexpr Word kTwo = Word{2} << 30;
  static constexpr Word kStored = Word{3} << 30;
  static constexpr Word kSlotMask = kMostWorkers - 1;
  static_assert(kMostWorkers == 1 << 12);

  static Kind KindOf(Word word) { return static_cast<Kind>(word >> 28 & 3); }
  // Units of a node; and its words after the first, the generation, that hold the set.
  static std::uint32_t UnitsOf(Kind kind);
  static std::uint32_t SetWordsOf(Kind kind);

  AtomicWord* NodeOf(Word word) const;
  Slots SlotsOf(Word word) const;
  std::optional<Word> Make(const Slots& slots);
  std::optional<Word> TakeNode(Kind kind);
  bool AddInPlace(Word word, std::uint32_t slot);
  // The word of what is left of a node after workers were removed from it in place.
  Word Shrunk(Word word);

  MemoryRoom& room_;  // outlives this
  // Filled in order and never changed after: readers go through words, which are stored later.
  std::vector<std::atomic<AtomicWord*>> chunks_;

  absl::Mutex mutex_;
  std::vector<Chunk> owned_ ABSL_GUARDED_BY(mutex_);
  // By kind: a node that nobody uses, its second word the next such one; 0: none.
  std::array<Word, kKinds> free_ ABSL_GUARDED_BY(mutex_){};
  // By kind: units [next, end) that were never used.
  std::array<std::uint32_t, kKinds> next_unit_ ABSL_GUARDED_BY(mutex_){};
  std::array<std::uint32_t, kKinds> end_unit_ ABSL_GUARDED_BY(mutex_){};
};

template <typename Still>
bool WorkerSets::Intersect(Word word,
                           const WorkerBits& wanted,
                           std::size_t words,
                           WorkerBits& common,
                           const Still& still) const {
  const auto take = [&](std::uint32_t slot) {
    if (wanted.Has(slot)) {
      common.Set(slot);
    }
  };
  if (!IsStored(word)) {
    take(word & kSlotMask);
    if ((word & kStored) == kTwo) {
      take(word >> 12 & kSlotMask);
    }
    return true;
  }
  // Every load acquires, so that none moves before an earlier one. What a later owner of the node
  // wrote was written after the generation rose, and that after the word was replaced.
  const AtomicWord* node = NodeOf(word);
  const std::uint32_t generation = node[0].load(std::memory_order_acquire);
  const AtomicWord* set = node + 1;
  if (KindOf(word) == Kind::kBitmap) {
    for (std::size_t i = 0; i < words; ++i) {
      common.words[i] |= wanted.words[i] & set[i].load(std::memory_order_acquire);
    }
  } else {
    for (std::uint32_t i = 0; i < SetWordsOf(KindOf(word)); ++i) {
      const std::uint32_t pair = set[i].load(std::memory_order_acquire);
      for (const std::uint32_t slot : {pair & 0xffff, pair >> 16}) {
        if (slot < kMostWorkers) {
          take(slot);
        }
      }
    }
  }
  return still() && node[0].load(std::memory_order_acquire) == generation;
}

}  // namespace baton
