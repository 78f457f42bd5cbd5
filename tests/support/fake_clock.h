#pragma once

#include <atomic>
#include <chrono>

#include "common/clock.h"

namespace baton {

// Time that moves when told to. Thread-safe.
class FakeClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(now_.load())); }
  void Advance(Duration by) { now_ += by.count(); }

 private:
  std::atomic<Duration::rep> now_ = std::chrono::nanoseconds(std::chrono::hours(1)).count();
};

}  // namespace baton
