#pragma once

#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.pb.h"
#include "common/strong_id.h"
#include "router/tiered_index.h"

namespace baton {

// One stream of reports; never given twice.
using FeedId = StrongId<struct FeedIdTag, std::uint64_t>;

// What the index holds of one worker, tier by tier, kept equal to what the worker's reports say.
//
// A worker may be reported on by two streams (it is on the static list and registers as well): the
// one whose snapshot began last is followed, the other one's KV reports are passed over. Whenever
// it is not certain that all is known (events are missing, the stream has ended) nothing of the
// worker is in the index.
//
// Thread-safe.
class WorkerKv {
 public:
  // `index` must outlive this.
  WorkerKv(TieredIndex& index, WorkerSlot slot) : index_(index), slot_(slot) {}
  ~WorkerKv() { Clear(); }
  WorkerKv(const WorkerKv&) = delete;
  WorkerKv& operator=(const WorkerKv&) = delete;

  enum class Outcome { kTaken, kIgnored, kSnapshotWanted };
  // INVALID_ARGUMENT, and nothing was taken, for hashes that are not 16 bytes each and for a tier
  // that there is none of.
  absl::StatusOr<Outcome> TakeSnapshot(FeedId feed, const v1::KvSnapshot& part);
  absl::StatusOr<Outcome> TakeEvents(FeedId feed, const v1::KvEvents& events);

  // The stream has ended. True when it was the one that was followed.
  bool Drop(FeedId feed);
  // Another process has taken the worker's place.
  void Clear();

 private:
  void ClearLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  TieredIndex& index_;
  const WorkerSlot slot_;
  absl::Mutex mutex_;
  std::optional<FeedId> followed_ ABSL_GUARDED_BY(mutex_);
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;  // the last part of the snapshot was there
  std::uint64_t next_event_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton
