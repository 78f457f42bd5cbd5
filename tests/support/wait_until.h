#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace baton {

// Polls `condition` until it holds or `limit` is over; returns whether it held. The only place
// where a test sleeps.
inline bool WaitUntil(const std::function<bool()>& condition,
                      std::chrono::milliseconds limit = std::chrono::seconds(10)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) {
      return condition();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace baton
