// What streams of reports do to the fleet.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/flags.h"
#include "common/kv_layout.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/tls_hint.h"
#include "proto/identity_conversion.h"
#include "router/fleet.h"
#include "router/fleet_worker.h"

namespace baton {
namespace {

v1::RouterNotice NoticeOf(const std::string& problem) {
  v1::RouterNotice notice;
  if (problem.empty()) {
    notice.mutable_accepted();
  } else {
    notice.set_refused(problem);
  }
  return notice;
}

v1::RouterNotice ResyncNotice() {
  v1::RouterNotice notice;
  notice.mutable_resync();
  return notice;
}

std::uint64_t Beyond(std::uint64_t reported, PeakCount& own) {
  const std::uint64_t known = own.TakePeak();
  return reported > known ? reported - known : 0;
}

void NoteLoad(const v1::EngineLoad& load, WorkerCounts& counts) {
  counts.others_decoding = Beyond(load.decoding_sequences(), counts.decoding);
  counts.others_context_tokens = Beyond(load.running_context_tokens(), counts.context_tokens);
  counts.others_prefill_tokens = Beyond(load.queued_prefill_tokens(), counts.prefill_tokens);
}

}  // namespace

FeedId Fleet::OpenFeed(std::optional<WorkerSlot> listed, Notify notify) {
  absl::MutexLock lock(&mutex_);
  const FeedId id(next_feed_++);
  auto feed = std::make_unique<FleetFeed>();
  feed->listed = listed;
  feed->notify = std::move(notify);
  feeds_[id] = std::move(feed);
  return id;
}

absl::Status Fleet::OnReport(FeedId feed, const v1::WorkerReport& report) {
  switch (report.report_case()) {
    case v1::WorkerReport::kDescription:
      return OnDescription(feed, report.description());
    case v1::WorkerReport::kSnapshot:
    case v1::WorkerReport::kEvents:
      return OnKv(feed, report);
    case v1::WorkerReport::REPORT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("report: it is empty");
}

absl::Status Fleet::OnDescription(FeedId id, const v1::WorkerDescription& description) {
  WorkerKv* left = nullptr;  // of the process before
  {
    absl::MutexLock lock(&mutex_);
    FleetFeed& feed = *feeds_.at(id);
    if (feed.worker == nullptr) {
      ASSIGN_OR_RETURN(feed.worker, FindWorker(feed, description));
      feed.instance = description.instance_id();
      feed.worker->feeds.insert(id);
      left = TakePlace(*feed.worker, feed.instance);
    }
  }
  if (left != nullptr) {
    left->Clear();  // may take a while: not under the lock
  }
  Notify notify;
  v1::RouterNotice notice;
  {
    absl::MutexLock lock(&mutex_);
    FleetFeed& feed = *feeds_.at(id);
    FleetWorker& worker = *feed.worker;
    if (description.instance_id() != feed.instance) {
      return absl::InvalidArgumentError(
          "description.instance_id: it has changed within one stream");
    }
    if (worker.instance != feed.instance) {
      return absl::FailedPreconditionError(absl::StrCat("another process has taken ",
                                                        worker.address, ", with instance id ",
                                                        ToHex(worker.instance)));
    }
    Accept(worker, description);
    if (feed.told == worker.problem) {
      return absl::OkStatus();
    }
    feed.told = worker.problem;
    notice = NoticeOf(worker.problem);
    notify = feed.notify;
  }
  notify(notice);
  return absl::OkStatus();
}

// Nothing of the process before counts for the one that has come: its cache is empty, its calls are
// broken. Returns what is to be cleared; null when it is the same process.
WorkerKv* Fleet::TakePlace(FleetWorker& worker, const std::string& instance) {
  if (worker.instance == instance) {
    return nullptr;
  }
  if (!worker.instance.empty()) {
    LogEvent(
        LogLevel::kInfo, "fleet.worker_replaced",
        {{"worker", worker.address}, {"before", ToHex(worker.instance)}, {"now", ToHex(instance)}});
  }
  worker.instance = instance;
  worker.counts = std::make_shared<WorkerCounts>();
  worker.alive = false;
  view_is_old_ = true;
  return &worker.kv;
}

absl::StatusOr<FleetWorker*> Fleet::FindWorker(FleetFeed& feed,
                                               const v1::WorkerDescription& description) {
  FleetWorker* worker = nullptr;
  if (feed.listed.has_value()) {
    worker = workers_[feed.listed->value()].get();
  } else {
    if (description.role() != v1::ROLE_DECODE && description.role() != v1::ROLE_PREFILL) {
      return absl::InvalidArgumentError(absl::StrCat(
          "description.role: ", v1::Role_Name(description.role()), " is no role of a worker"));
    }
    if (const absl::Status address = CheckHostPort(description.address()); !address.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("description.address: ", std::string(address.message())));
    }
    for (const std::unique_ptr<FleetWorker>& known : workers_) {
      if (known != nullptr && known->role == description.role() &&
          known->address == description.address()) {
        worker = known.get();
      }
    }
    if (worker == nullptr) {
      ASSIGN_OR_RETURN(worker,
                       AddWorker(description.role(), description.address(), /*listed=*/false));
    }
  }
  return worker;
}

void Fleet::Accept(FleetWorker& worker, const v1::WorkerDescription& description) {
  std::string problem = FindProblem(worker, description);
  const bool usable = problem.empty();
  if (!usable && problem != worker.problem) {
    LogEvent(LogLevel::kWarn, "fleet.worker_refused",
             {{"worker", worker.address}, {"why", problem}});
  } else if (usable && !worker.usable()) {
    LogEvent(LogLevel::kInfo, "fleet.worker_alive",
             {{"worker", worker.address}, {"instance", ToHex(description.instance_id())}});
  }
  NoteLoad(description.load(), *worker.counts);
  const absl::StatusOr<EngineIdentity> identity = FromProto(description.identity());
  const std::uint32_t layout =
      identity.ok()
          ? layouts_.try_emplace(LayoutFingerprint(*identity), layouts_.size()).first->second
          : 0;
  if (usable && !worker.usable()) {
    // What is known of the others by now; its own rates count from the next fit on.
    worker.costs = costs_;
  }
  if (usable != worker.usable() || layout != worker.layout ||
      description.zone() != worker.description.zone()) {
    view_is_old_ = news_ = true;
  }
  worker.asked = true;
  worker.alive = true;
  worker.last_report = Clock::System().Now();
  worker.problem = std::move(problem);
  worker.layout = layout;
  worker.description = description;
}

std::string Fleet::FindProblem(const FleetWorker& worker,
                               const v1::WorkerDescription& description) const {
  if (description.role() != worker.role) {
    return absl::StrCat("is listed as ", v1::Role_Name(worker.role), ", but says it is ",
                        v1::Role_Name(description.role()));
  }
  if (!InstanceId::FromBytes(description.instance_id()).has_value()) {
    return "has no instance id of 16 bytes";
  }
  const absl::StatusOr<EngineIdentity> theirs = FromProto(description.identity());
  if (!theirs.ok()) {
    return absl::StrCat("has no valid identity: ", std::string(theirs.status().message()));
  }
  // The router has no engine: of an identity it knows the model and the tokenizer.
  EngineIdentity ours = *theirs;
  ours.model_fingerprint = options_.model_fingerprint;
  ours.tokenizer_fingerprint = options_.tokenizer_fingerprint;
  if (ours != *theirs) {
    return absl::StrCat("serves another model than the router: ",
                        DescribeDifference(ours, *theirs));
  }
  if (!description.draining()) {
    return "";
  }
  // No room for any sequence: see WorkerCore::SetStalled.
  return description.max_sequences() > 0 ? "is draining"
                                         : "can run nothing: its engine stands still";
}

absl::Status Fleet::OnKv(FeedId id, const v1::WorkerReport& report) {
  WorkerKv* kv = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const FleetFeed& feed = *feeds_.at(id);
    if (feed.worker == nullptr) {
      return absl::InvalidArgumentError("report: the first one is no description");
    }
    if (feed.worker->instance != feed.instance) {
      return absl::FailedPreconditionError(
          absl::StrCat("another process has taken ", feed.worker->address));
    }
    kv = &feed.worker->kv;  // stays while one of its feeds is open
  }
  ASSIGN_OR_RETURN(const WorkerKv::Outcome outcome, report.has_snapshot()
                                                        ? kv->TakeSnapshot(id, report.snapshot())
                                                        : kv->TakeEvents(id, report.events()));
  if (outcome != WorkerKv::Outcome::kSnapshotWanted) {
    return absl::OkStatus();
  }
  Notify notify;
  {
    absl::MutexLock lock(&mutex_);
    ++resyncs_;
    notify = feeds_.at(id)->notify;
    LogEvent(LogLevel::kWarn, "fleet.kv_events_missing",
             {{"worker", feeds_.at(id)->worker->address}});
  }
  notify(ResyncNotice());
  return absl::OkStatus();
}

void Fleet::CloseFeed(FeedId id, const absl::Status& why) {
  WorkerKv* kv = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    FleetWorker* worker = feeds_.at(id)->worker;
    kv = worker == nullptr ? nullptr : &worker->kv;
  }
  const bool followed = kv != nullptr && kv->Drop(id);  // may take a while: not under the lock
  std::vector<Notify> resync;
  {
    absl::MutexLock lock(&mutex_);
    const auto place = feeds_.find(id);
    const std::unique_ptr<FleetFeed> feed = std::move(place->second);
    feeds_.erase(place);
    news_ = true;
    FleetWorker* worker = feed->worker;
    if (feed->listed.has_value()) {
      worker = workers_[feed->listed->value()].get();
      worker->watch = nullptr;
      worker->next_watch = Clock::System().Now() + options_.watch_again;
      worker->asked = true;
    }
    if (worker == nullptr) {
      return;
    }
    worker->feeds.erase(id);
    if (followed) {
      for (const FeedId other : worker->feeds) {
        resync.push_back(feeds_.at(other)->notify);
      }
    }
    const bool replaced = feed->worker != nullptr && worker->instance != feed->instance;
    if (worker->feeds.empty() && !replaced) {
      NoteGone(*worker, why);
    }
  }
  for (const Notify& notify : resync) {
    notify(ResyncNotice());
  }
}

void Fleet::NoteGone(FleetWorker& worker, const absl::Status& status) {
  const absl::Status why = WithTlsHint(status, options_.tls.use());
  if (worker.alive && !stopping_) {
    LogEvent(LogLevel::kWarn, "fleet.worker_dead",
             {{"worker", worker.address}, {"why", std::string(why.message())}});
  }
  worker.alive = false;
  worker.problem = absl::StrCat("is not reachable: ", std::string(why.message()));
  view_is_old_ = true;
}

}  // namespace baton
