#pragma once

#include <chrono>

namespace baton {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::nanoseconds;

// Monotonic time; the only time that deadlines, leases and heartbeats are measured in. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;

  // The steady clock of this machine; lives for the whole program.
  static const Clock& System();
};

}  // namespace baton
