#pragma once

#include <atomic>

#include "absl/status/status.h"

namespace baton {

// Named places in a server where a test makes something happen.
//
// What may happen there (tests/support/failpoint_actions.cc: pause, kill, error) is linked only
// into the test builds of the servers. In a server as it is deployed no handler exists and none can
// be installed from outside: a failpoint there is the load of a null pointer.
class FailpointHandler {
 public:
  virtual ~FailpointHandler() = default;
  // Called on whatever thread meets the failpoint; may not return at all.
  virtual absl::Status OnHit(const char* name) = 0;
};

// Set at most once, before threads start.
inline std::atomic<FailpointHandler*> failpoint_handler = nullptr;

// OK unless a test wants this place to fail. Places that cannot fail ignore the result.
inline absl::Status HitFailpoint(const char* name) {
  FailpointHandler* const handler = failpoint_handler.load(std::memory_order_acquire);
  return handler == nullptr ? absl::OkStatus() : handler->OnHit(name);
}

}  // namespace baton
