#include "worker/report_feed.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace baton {
namespace {

std::string_view BytesOf(const PrefixHash& hash) {
  return {reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()};
}

}  // namespace

ReportFeed::ReportFeed(std::function<v1::WorkerDescription()> describe,
                       const KvEventLog& log,
                       const ReportTimes& times)
    : describe_(std::move(describe)), log_(log), times_(times) {}

std::optional<v1::WorkerReport> ReportFeed::Next(TimePoint now) {
  if (now >= next_description_) {
    return MakeDescription(now);
  }
  if (snapshot_wanted_ || snapshot_.has_value()) {
    return MakeSnapshotPart();
  }
  const std::uint64_t waiting = log_.next_event() - next_event_;
  if (waiting == 0 || (waiting < kMostEvents && now < next_events_)) {
    return std::nullopt;
  }
  return MakeEvents(now);
}

bool ReportFeed::behind() const {
  return snapshot_wanted_ || snapshot_.has_value() || log_.next_event() != next_event_;
}

TimePoint ReportFeed::next_due() const {
  if (snapshot_wanted_ || snapshot_.has_value()) {
    return TimePoint::min();
  }
  return log_.next_event() != next_event_ ? std::min(next_description_, next_events_)
                                          : next_description_;
}

v1::WorkerReport ReportFeed::MakeDescription(TimePoint now) {
  next_description_ = now + times_.description;
  v1::WorkerReport report;
  *report.mutable_description() = describe_();
  return report;
}

v1::WorkerReport ReportFeed::MakeSnapshotPart() {
  if (std::exchange(snapshot_wanted_, false)) {
    snapshot_ = log_.TakeSnapshot();
    told_hashes_ = 0;
    next_event_ = snapshot_->next_event;
  }
  const std::size_t end = std::min(told_hashes_ + kSnapshotHashes, snapshot_->hashes.size());
  v1::WorkerReport report;
  v1::KvSnapshot& part = *report.mutable_snapshot();
  part.set_next_event(snapshot_->next_event);
  part.set_first(told_hashes_ == 0);
  part.set_last(end == snapshot_->hashes.size());
  part.mutable_hashes()->reserve((end - told_hashes_) * sizeof(PrefixHash::bytes));
  for (; told_hashes_ < end; ++told_hashes_) {
    part.mutable_hashes()->append(BytesOf(snapshot_->hashes[told_hashes_]));
  }
  if (part.last()) {
    snapshot_.reset();
  }
  return report;
}

std::optional<v1::WorkerReport> ReportFeed::MakeEvents(TimePoint now) {
  const std::optional<std::vector<KvChange>> changes = log_.ReadFrom(next_event_, kMostEvents);
  if (!changes.has_value()) {
    snapshot_wanted_ = true;  // the router is too slow for the window
    return MakeSnapshotPart();
  }
  next_events_ = now + times_.events;
  v1::WorkerReport report;
  v1::KvEvents& events = *report.mutable_events();
  events.set_first_event(next_event_);
  events.mutable_events()->Reserve(static_cast<int>(changes->size()));
  for (const KvChange& change : *changes) {
    v1::KvEvent& event = *events.add_events();
    const std::string_view hash = BytesOf(change.hash);
    (change.stored ? event.mutable_stored() : event.mutable_removed())->assign(hash);
  }
  next_event_ += changes->size();
  return report;
}

}  // namespace baton
