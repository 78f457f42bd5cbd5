#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/block_hash.h"
#include "engine/cache_observer.h"

namespace baton {

// One change of what a prefix cache holds.
struct KvChange {
  PrefixHash hash;
  bool stored = false;  // else removed
};

// What this worker's prefix cache holds, and its last changes, numbered from 0, for any number of
// readers that come and go.
//
// A reader keeps the number of the next change that it wants. It begins with a snapshot, which
// names the change that follows it, and goes on with ReadFrom. Only the last `window` changes are
// kept: a reader that is farther behind takes another snapshot. Memory: 17 bytes for each change of
// the window, 45 to 75 for each hash held.
//
// Thread-safe. A change takes the lock for a few table operations, a snapshot for one copy of all
// hashes.
class KvEventLog final : public CacheObserver {
 public:
  static constexpr std::size_t kWindow = 1 << 16;

  struct Snapshot {
    std::uint64_t next_event = 0;
    std::vector<PrefixHash> hashes;  // in no order
  };

  explicit KvEventLog(std::size_t window = kWindow) : window_(window) {}

  // Room for as many hashes as will ever be held, so that no change has to make some.
  void Reserve(std::size_t hashes);
  // Called once after each CallOnNextChange, with the next change, on the engine's thread and with
  // the lock held: it must not block, nor use the log. After the return of this function the
  // listener before is not called any more; an empty one is none.
  void SetListener(std::function<void()> listener);
  // False, and nothing will be called, when a change numbered `next_event` or later is there.
  bool CallOnNextChange(std::uint64_t next_event);

  void OnStored(const PrefixHash& hash) override { Add({.hash = hash, .stored = true}); }
  void OnRemoved(const PrefixHash& hash) override { Add({.hash = hash, .stored = false}); }

  // The number of the next change.
  std::uint64_t next_event() const;
  Snapshot TakeSnapshot() const;
  // At most `most` changes, the first of them number `first_event`; fewer when there are no more.
  // nullopt when that one has left the window, or is later than the next.
  std::optional<std::vector<KvChange>> ReadFrom(std::uint64_t first_event, std::size_t most) const;

 private:
  void Add(const KvChange& change);
  void Hold(const PrefixHash& hash) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGo(const PrefixHash& hash) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::size_t window_;

  mutable absl::Mutex mutex_;
  std::function<void()> listener_ ABSL_GUARDED_BY(mutex_);  // may be empty
  bool call_listener_ ABSL_GUARDED_BY(mutex_) = false;
  std::uint64_t next_event_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<KvChange> changes_ ABSL_GUARDED_BY(mutex_);  // number n stands at n % window_
  // Side by side, so that a snapshot is one copy.
  std::vector<PrefixHash> held_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<PrefixHash, std::size_t> place_ ABSL_GUARDED_BY(mutex_);  // in held_
};

}  // namespace baton
