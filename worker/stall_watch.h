#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "common/clock.h"

namespace baton {

struct StallLimits {
  // Without a sign of life for so long it has stalled. Health must say so within 5 s.
  Duration stalled_after = std::chrono::seconds(3);
  Duration look_every = std::chrono::milliseconds(200);
};

// Looks whether a thread that counts up goes on counting, and tells when it has stopped and when it
// counts again.
//
// What is counted are its own looks without a change, not the time: when the whole process was
// stopped, or the machine has slept, the thread has had no chance either.
//
// Thread-safe.
class StallWatch {
 public:
  // `signs` grows as long as all is well. `changed` is called with true when it has stalled and
  // with false when it goes on, in turns. Both are called on the watch's thread and outlive the
  // watch.
  StallWatch(std::function<std::uint64_t()> signs,
             std::function<void(bool stalled)> changed,
             const StallLimits& limits);
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

 private:
  void Run(const std::stop_token& stop) const;

  const std::function<std::uint64_t()> signs_;
  const std::function<void(bool)> changed_;
  const StallLimits limits_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace baton
