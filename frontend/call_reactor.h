#pragma once

#include "absl/status/status.h"
#include "common/clock.h"

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace baton {

// Why gRPC says that a call is cancelled: the client's deadline is over, or the client has left.
absl::Status CancellationCause(const grpc::CallbackServerContext& context);

// When a call is to end: the client's deadline, `default_time` from `now` without one, `longest` at
// most.
struct DeadlineLimits {
  Duration default_time;
  Duration longest;
};
TimePoint CallDeadline(const grpc::CallbackServerContext& context,
                       TimePoint now,
                       const DeadlineLimits& limits);

// Ends a call at once: `status` overtakes what is still waiting to be sent, even a message on its
// way to a client that does not read, which would hold up Finish. The write in flight then fails,
// and Finish is still to be called.
void CutCall(grpc::CallbackServerContext& context, const absl::Status& status);

}  // namespace baton
