#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "common/sha256.h"
#include "proto/tls_credentials.h"
#include "router/fleet_view.h"
#include "router/tiered_index.h"
#include "router/worker_costs.h"
#include "router/worker_kv.h"

namespace baton {

class WatchReactor;
struct FleetFeed;
struct FleetWorker;

struct FleetOptions {
  // The static list: host:port. These workers are watched, and stay for good.
  std::vector<std::string> decode;
  std::vector<std::string> prefill;
  TlsFiles tls;
  // Of the router's own model. A worker with another one is refused: it would get tokens that it
  // does not know.
  Digest model_fingerprint{};
  Digest tokenizer_fingerprint{};
  std::chrono::milliseconds watch_again{200};  // from the end of a watch to the next try
  std::chrono::milliseconds dead_after{1000};  // without a report
  // A worker that had registered and is gone is shown for so long.
  std::chrono::milliseconds forget_after{60'000};
};

// The workers that this router knows, and which of them may get requests and why the others may
// not: those of the static list, which it watches, and those that have registered.
//
// A worker is alive while a stream of its reports stands and the last report is young. Alive is not
// enough: its role, model and tokenizer must be right, and it must not be draining. Its KV reports
// go to the prefix index.
//
// Thread-safe; Start is called once.
class Fleet {
 public:
  // Says something to a worker on its stream; any thread, does not block.
  using Notify = std::function<void(const v1::RouterNotice&)>;

  // `index` must outlive the fleet.
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(FleetOptions options, TieredIndex& index);
  // Waits for watches under way. Feeds must be closed.
  ~Fleet();

  // Begins to watch. `can_serve` is called on the fleet's thread, first at once and then on every
  // change of whether some decode worker may get requests. It is not true before every worker of
  // the static list has been asked once, so that the first long prompt finds the prefill workers.
  //
  // `rates_fitted` is called on that thread too, about every second.
  void Start(std::function<void(bool)> can_serve,
             std::function<void(const FleetRates&)> rates_fitted = {});
  // Begins no more watches and ends those under way; after it `can_serve` is not called any more.
  // Any number of times, not from `can_serve`.
  void Stop();

  // The usable workers, as they are now. Makes a new view only when something has changed.
  std::shared_ptr<const FleetView> View();
  // What `baton status` shows: decode workers first, each role in the order of the list, then as
  // they registered.
  std::vector<v1::WorkerStatus> Status() const;
  FleetRates rates() const;
  std::uint64_t resyncs() const;

  // A stream of reports. `listed`: the worker of the static list that is watched.
  FeedId OpenFeed(std::optional<WorkerSlot> listed, Notify notify);
  // RESOURCE_EXHAUSTED when there are too many workers, INVALID_ARGUMENT for a report that makes no
  // sense: the stream is to end with it. One call at a time for a feed.
  absl::Status OnReport(FeedId feed, const v1::WorkerReport& report);
  void CloseFeed(FeedId feed, const absl::Status& why);

 private:
  Fleet(FleetOptions options, TieredIndex& index);

  absl::Status AddListed(v1::Role role, const std::vector<std::string>& addresses);
  absl::StatusOr<FleetWorker*> AddWorker(v1::Role role, const std::string& address, bool listed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  void FitCosts();
  std::vector<std::shared_ptr<WatchReactor>> TakeDue(TimePoint now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  TimePoint NextEvent(TimePoint now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateLiveness(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetGone(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanServe() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeView() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // In fleet_reports.cc.
  absl::Status OnDescription(FeedId id, const v1::WorkerDescription& description);
  // The worker that a feed's first description is about.
  absl::StatusOr<FleetWorker*> FindWorker(FleetFeed& feed, const v1::WorkerDescription& description)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  WorkerKv* TakePlace(FleetWorker& worker, const std::string& instance)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteGone(FleetWorker& worker, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Accept(FleetWorker& worker, const v1::WorkerDescription& description)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string FindProblem(const FleetWorker& worker,
                          const v1::WorkerDescription& description) const;
  absl::Status OnKv(FeedId id, const v1::WorkerReport& report);

  const FleetOptions options_;
  TieredIndex& index_;

  mutable absl::Mutex mutex_;
  // By slot; null where free.
  std::vector<std::unique_ptr<FleetWorker>> workers_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<FeedId, std::unique_ptr<FleetFeed>> feeds_ ABSL_GUARDED_BY(mutex_);
  std::map<Digest, std::uint32_t> layouts_ ABSL_GUARDED_BY(mutex_);  // numbers, as they were met
  std::uint64_t next_feed_ ABSL_GUARDED_BY(mutex_) = 1;
  std::uint64_t next_arrival_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t resyncs_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const FleetView> view_ ABSL_GUARDED_BY(mutex_);
  WorkerCosts costs_ ABSL_GUARDED_BY(mutex_){.model = NominalCosts()};  // of the whole fleet
  FleetRates rates_ ABSL_GUARDED_BY(mutex_);
  TimePoint next_fit_ ABSL_GUARDED_BY(mutex_);
  bool view_is_old_ ABSL_GUARDED_BY(mutex_) = false;
  bool news_ ABSL_GUARDED_BY(mutex_) = false;  // something for the thread to look at
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Set before the thread begins.
  std::function<void(bool)> can_serve_changed_;
  std::function<void(const FleetRates&)> rates_fitted_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace baton
