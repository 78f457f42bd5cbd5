#include "frontend/call_reactor.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <chrono>
#include <string>

namespace baton {
namespace {

using WallClock = std::chrono::system_clock;

}  // namespace

absl::Status CancellationCause(const grpc::CallbackServerContext& context) {
  if (context.deadline() <= WallClock::now()) {
    return absl::DeadlineExceededError("deadline of the request is over");
  }
  return absl::CancelledError("client has left");
}

TimePoint CallDeadline(const grpc::CallbackServerContext& context,
                       TimePoint now,
                       const DeadlineLimits& limits) {
  // The farthest time point stands for "none"; the difference to it would overflow.
  const WallClock::time_point deadline = context.deadline();
  const WallClock::time_point wall_now = WallClock::now();
  if (deadline == WallClock::time_point::max()) {
    return now + std::min(limits.default_time, limits.longest);
  }
  if (deadline > wall_now + limits.longest) {
    return now + limits.longest;
  }
  return now + std::chrono::duration_cast<Duration>(deadline - wall_now);
}

void CutCall(grpc::CallbackServerContext& context, const absl::Status& status) {
  // ServerContext::TryCancel does the same with CANCELLED, which would hide the reason from the
  // client. The code numbers of Abseil and gRPC are equal.
  grpc_call_cancel_with_status(context.c_call(), static_cast<grpc_status_code>(status.code()),
                               std::string(status.message()).c_str(), nullptr);
}

}  // namespace baton
