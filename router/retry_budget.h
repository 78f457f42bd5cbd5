#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"

namespace baton {

// How often requests may be tried again at another worker, so that a sick fleet does not get its
// load twice: in the long run at most one retry for `1 / share` requests, and a trickle beside, so
// that a router with few requests may retry too.
//
// Thread-safe.
class RetryBudget {
 public:
  struct Options {
    double share = 0.1;             // retries for each request
    double floor_per_second = 0.1;  // retries that need no requests
    double most_saved = 10;         // unused retries that are kept, and there are at the start
  };

  explicit RetryBudget(const Options& options, const Clock& clock = Clock::System());
  RetryBudget() : RetryBudget(Options{}) {}

  // A request has come; its retries are no requests.
  void OnRequest();
  // Whether a request that has failed may be tried again; taken from the budget if so.
  bool TryRetry();

  std::uint64_t retried() const;
  std::uint64_t denied() const;

 private:
  void Refill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;
  double saved_ ABSL_GUARDED_BY(mutex_);
  TimePoint refilled_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t retried_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t denied_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton
