#include "worker/stall_watch.h"

#include <condition_variable>
#include <mutex>
#include <utility>

namespace baton {

StallWatch::StallWatch(std::function<std::uint64_t()> signs,
                       std::function<void(bool stalled)> changed,
                       const StallLimits& limits)
    : signs_(std::move(signs)),
      changed_(std::move(changed)),
      limits_(limits),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

void StallWatch::Run(const std::stop_token& stop) const {
  std::uint64_t last = signs_();
  Duration silent{};
  bool stalled = false;
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any wake;
  while (true) {
    wake.wait_for(lock, stop, limits_.look_every, [] { return false; });
    if (stop.stop_requested()) {
      return;
    }
    const std::uint64_t now = signs_();
    silent = now == last ? silent + limits_.look_every : Duration::zero();
    last = now;
    if (stalled != (silent >= limits_.stalled_after)) {
      stalled = !stalled;
      changed_(stalled);
    }
  }
}

}  // namespace baton
