#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"

namespace baton {

// Runs functions at given times on one thread of its own. Thread-safe.
class TimerThread {
 public:
  // Names one scheduled function.
  struct Key {
    TimePoint when;
    std::uint64_t number = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  TimerThread();
  // Drops what has not run yet. Must not be called from a scheduled function.
  ~TimerThread();
  TimerThread(const TimerThread&) = delete;
  TimerThread& operator=(const TimerThread&) = delete;

  // `function` must be quick: those after it wait. It runs without a lock held.
  Key Schedule(TimePoint when, std::function<void()> function);
  // The function will not begin any more; it may be running right now, or have run. Without effect
  // on an old key.
  void Cancel(const Key& key);

 private:
  void Run();
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::map<Key, std::function<void()>> functions_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Key awaited_ ABSL_GUARDED_BY(mutex_);  // the thread sleeps until this one
  std::jthread thread_;                  // last: it uses all of the above
};

}  // namespace baton
