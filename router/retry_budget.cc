#include "router/retry_budget.h"

#include <algorithm>
#include <chrono>

namespace baton {

RetryBudget::RetryBudget(const Options& options, const Clock& clock)
    : options_(options), clock_(clock), saved_(options.most_saved), refilled_(clock.Now()) {}

void RetryBudget::Refill() {
  const TimePoint now = clock_.Now();
  const double seconds = std::chrono::duration<double>(now - refilled_).count();
  refilled_ = now;
  saved_ = std::min(options_.most_saved, saved_ + seconds * options_.floor_per_second);
}

void RetryBudget::OnRequest() {
  absl::MutexLock lock(&mutex_);
  saved_ = std::min(options_.most_saved, saved_ + options_.share);
}

bool RetryBudget::TryRetry() {
  absl::MutexLock lock(&mutex_);
  Refill();
  constexpr double kWhole = 1 - 1e-9;  // tenths do not add up to exactly one
  if (saved_ < kWhole) {
    ++denied_;
    return false;
  }
  saved_ = std::max(0.0, saved_ - 1);
  ++retried_;
  return true;
}

std::uint64_t RetryBudget::retried() const {
  absl::MutexLock lock(&mutex_);
  return retried_;
}

std::uint64_t RetryBudget::denied() const {
  absl::MutexLock lock(&mutex_);
  return denied_;
}

}  // namespace baton
