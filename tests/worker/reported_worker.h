#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>

#include "baton/v1/worker.pb.h"

namespace baton {

// What a router knows of a worker by its reports: rebuilds the set of hashes, and is strict about
// order. Not thread-safe.
class ReportedWorker {
 public:
  void Take(const v1::WorkerReport& report) {
    switch (report.report_case()) {
      case v1::WorkerReport::kDescription:
        description_ = report.description();
        ++descriptions_;
        break;
      case v1::WorkerReport::kSnapshot:
        TakeSnapshot(report.snapshot());
        break;
      case v1::WorkerReport::kEvents:
        TakeEvents(report.events());
        break;
      case v1::WorkerReport::REPORT_NOT_SET:
        ADD_FAILURE() << "an empty report";
    }
    if (descriptions_ == 0) {
      ADD_FAILURE() << "the first report is no description";
    }
  }

  const v1::WorkerDescription& description() const { return description_; }
  int descriptions() const { return descriptions_; }
  int snapshots() const { return snapshots_; }  // whole ones
  int events() const { return events_; }
  bool has_snapshot() const { return snapshots_ > 0 && !in_snapshot_; }
  const std::set<std::string>& held() const { return held_; }

 private:
  void TakeSnapshot(const v1::KvSnapshot& part) {
    EXPECT_TRUE(part.first() || in_snapshot_);
    EXPECT_LE(part.hashes().size(), 1u << 20);
    ASSERT_EQ(part.hashes().size() % 16, 0u);
    if (part.first()) {
      held_.clear();
      next_event_ = part.next_event();
    }
    EXPECT_EQ(part.next_event(), next_event_);
    for (std::size_t i = 0; i < part.hashes().size(); i += 16) {
      EXPECT_TRUE(held_.insert(part.hashes().substr(i, 16)).second);
    }
    in_snapshot_ = !part.last();
    snapshots_ += part.last() ? 1 : 0;
  }

  void TakeEvents(const v1::KvEvents& events) {
    EXPECT_FALSE(in_snapshot_);
    EXPECT_GT(snapshots_, 0) << "events before a snapshot";
    EXPECT_EQ(events.first_event(), next_event_) << "a gap";
    for (const v1::KvEvent& event : events.events()) {
      if (event.cleared()) {
        held_.clear();
      }
      if (!event.stored().empty()) {
        EXPECT_TRUE(held_.insert(event.stored()).second);
      }
      if (!event.removed().empty()) {
        EXPECT_EQ(held_.erase(event.removed()), 1u);
      }
    }
    next_event_ = events.first_event() + static_cast<std::uint64_t>(events.events_size());
    events_ += events.events_size();
  }

  v1::WorkerDescription description_;
  int descriptions_ = 0;
  int snapshots_ = 0;
  int events_ = 0;
  bool in_snapshot_ = false;
  std::uint64_t next_event_ = 0;
  std::set<std::string> held_;
};

}  // namespace baton
