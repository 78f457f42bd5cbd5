#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/block_hash.h"
#include "router/prefix_index_sets.h"

namespace baton {

// The parts of the index's hash table: router/prefix_index.cc alone uses them.

struct PrefixKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  static PrefixKey Of(const PrefixHash& hash) {
    PrefixKey key;
    std::memcpy(&key.low, hash.bytes.data(), sizeof(key.low));
    std::memcpy(&key.high, hash.bytes.data() + sizeof(key.low), sizeof(key.high));
    return key;
  }
  // Its top bits choose a segment, its bottom bits a bucket in it. The hashes are uniform already;
  // those of a foreign worker need not be.
  std::uint64_t Place() const {
    std::uint64_t mixed = low ^ std::rotl(high, 32);
    mixed = (mixed ^ mixed >> 33) * 0xff51afd7ed558ccd;
    mixed = (mixed ^ mixed >> 33) * 0xc4ceb9fe1a85ec53;
    return mixed ^ mixed >> 33;
  }
};

// One cache line. An entry is there while its word, which says who holds the block (WorkerSets), is
// not 0. Its key is written only while the word is 0, and after the version rose: a reader that
// finds the version unchanged has seen a word that belongs to the key it has seen.
struct alignas(64) PrefixBucket {
  static constexpr std::size_t kEntries = 3;

  std::atomic<std::uint32_t> version{0};
  std::array<std::atomic<std::uint32_t>, kEntries> words{};
  std::array<std::atomic<std::uint64_t>, kEntries> key_low{};
  std::array<std::atomic<std::uint64_t>, kEntries> key_high{};

  PrefixKey KeyOf(std::size_t entry) const {
    return {key_low[entry].load(std::memory_order_acquire),
            key_high[entry].load(std::memory_order_acquire)};
  }
  bool Holds(std::size_t entry, const PrefixKey& key) const {
    return key_low[entry].load(std::memory_order_acquire) == key.low &&
           key_high[entry].load(std::memory_order_acquire) == key.high;
  }
  // REQUIRES: the entry is vacant.
  void Fill(std::size_t entry, const PrefixKey& key, std::uint32_t word) {
    version.store(version.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    key_low[entry].store(key.low, std::memory_order_release);
    key_high[entry].store(key.high, std::memory_order_release);
    words[entry].store(word, std::memory_order_release);
  }
};
static_assert(sizeof(PrefixBucket) == 64);

// A hash table of fixed size, 64 KiB. A key is in its own bucket or one of the next few, and never
// moves inside a segment.
struct PrefixSegment {
  static constexpr std::size_t kBuckets = 1024;
  static constexpr std::size_t kWindow = 16;  // buckets

  struct Entry {
    PrefixBucket* bucket = nullptr;
    std::size_t index = 0;

    std::atomic<std::uint32_t>& word() const { return bucket->words[index]; }
    explicit operator bool() const { return bucket != nullptr; }
  };

  // Held by whoever changes the segment; readers do without.
  absl::Mutex mutex;
  int depth ABSL_GUARDED_BY(mutex) = 0;  // leading bits of a place that all its keys share
  std::array<PrefixBucket, kBuckets> buckets;

  PrefixBucket& At(std::uint64_t place, std::size_t probe) {
    return buckets[(place + probe) % kBuckets];
  }

  Entry Find(std::uint64_t place, const PrefixKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return First(place, [&key](const PrefixBucket& bucket, std::size_t i, std::uint32_t word) {
      return word != 0 && bucket.Holds(i, key);
    });
  }
  Entry FindVacancy(std::uint64_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return First(place,
                 [](const PrefixBucket&, std::size_t, std::uint32_t word) { return word == 0; });
  }
  // Calls `visit` with every entry that is there.
  template <typename Visit>
  void ForEach(const Visit& visit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (PrefixBucket& bucket : buckets) {
      for (std::size_t i = 0; i < PrefixBucket::kEntries; ++i) {
        if (bucket.words[i].load(std::memory_order_relaxed) != 0) {
          visit(Entry{&bucket, i});
        }
      }
    }
  }

 private:
  template <typename Fits>
  Entry First(std::uint64_t place, const Fits& fits) {
    for (std::size_t probe = 0; probe < kWindow; ++probe) {
      PrefixBucket& bucket = At(place, probe);
      for (std::size_t i = 0; i < PrefixBucket::kEntries; ++i) {
        if (fits(bucket, i, bucket.words[i].load(std::memory_order_relaxed))) {
          return {&bucket, i};
        }
      }
    }
    return {};
  }
};

// Owns segments, and gives none back before its own end. The first ones come one by one; later ones
// lie 31 together on a huge page where the machine has them, since small pages would cost a look-up
// in a large table more than the rest of it.
//
// Thread-safe.
class PrefixSegments {
 public:
  explicit PrefixSegments(MemoryRoom& room) : room_(room) {}
  ~PrefixSegments();
  PrefixSegments(const PrefixSegments&) = delete;
  PrefixSegments& operator=(const PrefixSegments&) = delete;

  PrefixSegment* New();  // nullptr when there is no room

 private:
  struct FreeMemory {
    void operator()(void* memory) const;
  };
  using Slab = std::unique_ptr<void, FreeMemory>;

  MemoryRoom& room_;  // outlives this
  absl::Mutex mutex_;
  std::vector<Slab> slabs_ ABSL_GUARDED_BY(mutex_);
  std::vector<PrefixSegment*> segments_ ABSL_GUARDED_BY(mutex_);  // in the slabs
  std::size_t vacant_ ABSL_GUARDED_BY(mutex_) = 0;  // places left behind the last segment
};

}  // namespace baton
