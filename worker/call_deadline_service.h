#pragma once

#include <grpcpp/server_context.h>

#include <chrono>

#include "common/clock.h"

namespace baton {

// The deadline of a call on our monotonic clock; TimePoint::max() when the caller set none.
inline TimePoint DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return TimePoint::max();
  }
  return Clock::System().Now() +
         std::chrono::duration_cast<Duration>(deadline - std::chrono::system_clock::now());
}

}  // namespace baton
