#pragma once

#include <cstddef>

#include "absl/status/status.h"

namespace baton {

// The work of a server program, as its shutdown sees it. Thread-safe.
class DrainTarget {
 public:
  virtual ~DrainTarget() = default;
  // From now on new requests get UNAVAILABLE; those under way go on.
  virtual void StopIntake() = 0;
  // Requests under way.
  virtual std::size_t InFlight() const = 0;
  // Ends the requests under way with `why`; InFlight() reaches 0 soon after.
  virtual void CancelRest(const absl::Status& why) = 0;
};

}  // namespace baton
