#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace baton {

class CompletionSession;

// The requests under way: their ids, their number, and how those before them ended. Thread-safe.
class RunningRequests {
 public:
  // More than `limit` at a time are refused.
  explicit RunningRequests(std::size_t limit);

  // Whether a request may come in at all: UNAVAILABLE after StopIntake, RESOURCE_EXHAUSTED when
  // full.
  absl::Status CheckIntake() const;
  // CheckIntake, and ALREADY_EXISTS, field `request_id`, while another of this id runs. Until
  // Leave, `session` can be found and is counted.
  absl::Status Enter(const std::string& id, const std::shared_ptr<CompletionSession>& session);
  // The request has ended as `outcome` says; its id is free again.
  void End(const std::string& id, const std::string& outcome);
  // A session that entered is gone, its client's call too.
  void Leave();
  // A request ended before it could enter.
  void CountRefusal(absl::StatusCode code);

  void StopIntake();
  std::size_t in_flight() const;
  std::shared_ptr<CompletionSession> Find(const std::string& id) const;
  std::vector<std::shared_ptr<CompletionSession>> All() const;
  std::map<std::string, std::uint64_t> outcomes() const;

 private:
  absl::Status CheckIntakeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::size_t limit_;
  mutable absl::Mutex mutex_;
  bool intake_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::size_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::weak_ptr<CompletionSession>> sessions_
      ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::uint64_t> outcomes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
