#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "worker/kv_event_log.h"

namespace baton {

struct ReportTimes {
  Duration description = std::chrono::milliseconds(200);  // from one to the next
  Duration events = std::chrono::milliseconds(5);         // least, from one batch to the next
};

// What one router is to be told next: a description at once and every 200 ms, a snapshot of the
// prefix cache, and from then on the changes of it, in order and without a gap.
//
// Reports are made when they are asked for, so what waits for a slow router is bounded: the rest of
// one snapshot, 16 bytes a block. A router that is slower than the cache changes is sent a snapshot
// again.
//
// Not thread-safe.
class ReportFeed {
 public:
  static constexpr std::size_t kSnapshotHashes = std::size_t{1} << 16;  // of one report: 1 MiB
  static constexpr std::size_t kMostEvents = 4096;                      // of one report

  // `log` outlives the feed.
  ReportFeed(std::function<v1::WorkerDescription()> describe,
             const KvEventLog& log,
             const ReportTimes& times);

  // The next description is due now.
  void AskDescription() { next_description_ = TimePoint::min(); }
  // A snapshot comes next, the rest of one under way does not.
  void AskSnapshot() { snapshot_wanted_ = true; }

  // The next report, if one is due.
  std::optional<v1::WorkerReport> Next(TimePoint now);

  // Some of what the log has is still to be told: Next has something at next_due() at the latest.
  bool behind() const;
  // When Next has something again, if the log does not change.
  TimePoint next_due() const;

 private:
  v1::WorkerReport MakeDescription(TimePoint now);
  v1::WorkerReport MakeSnapshotPart();
  std::optional<v1::WorkerReport> MakeEvents(TimePoint now);

  const std::function<v1::WorkerDescription()> describe_;
  const KvEventLog& log_;
  const ReportTimes times_;

  TimePoint next_description_ = TimePoint::min();
  TimePoint next_events_ = TimePoint::min();
  bool snapshot_wanted_ = true;
  std::optional<KvEventLog::Snapshot> snapshot_;  // being told
  std::size_t told_hashes_ = 0;                   // of it
  std::uint64_t next_event_ = 0;                  // that the router is to be told of
};

}  // namespace baton
