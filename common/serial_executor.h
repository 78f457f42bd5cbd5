#pragma once

#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"

namespace baton {

// One thread that runs closures one after another, some of them at a later time: the owner of state
// that events from several threads change. Its queue is bounded by whoever posts: a fixed number of
// events for each admitted request.
//
// Thread-safe. The destructor runs what is due, drops what is timed for later, and joins; closures
// must not block.
class SerialExecutor {
 public:
  using Task = absl::AnyInvocable<void()>;

  SerialExecutor();
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  // Runs `task` after everything posted before. After destruction has begun it is dropped.
  void Post(Task task) { PostAt(TimePoint::min(), std::move(task)); }
  // Runs `task` at `when` or soon after.
  void PostAt(TimePoint when, Task task);

 private:
  void Run();
  bool IsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::multimap<TimePoint, Task> tasks_ ABSL_GUARDED_BY(mutex_);  // equal times in order of arrival
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace baton
