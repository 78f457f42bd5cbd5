#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// One handoff as the decode side sees it. The last three are ends.
enum class DecodeHandoffState : std::uint8_t {
  kLeased,     // destination blocks leased
  kRequested,  // the standing fetch is on its way to the prefill side
  kFetching,   // pieces arrive
  kLanded,     // all pieces in place, checksums verified
  kAdopted,    // the blocks belong to a running sequence
  kDone,
  kFailed,
  kCancelled,
};

// One handoff as the prefill side sees it. The last four are ends.
enum class PrefillHandoffState : std::uint8_t {
  kQueued,     // waits for the engine
  kComputing,  // the prompt runs; finished layers are already served
  kServing,    // computed, pieces left to send
  kServed,     // all pieces sent, not acknowledged
  kReleased,
  kFailed,
  kCancelled,
  kExpired,  // the decode side stopped renewing the lease
};

// The names as they stand above, "kLeased"; for logs, metrics and failpoints.
std::string_view ToString(DecodeHandoffState state);
std::string_view ToString(PrefillHandoffState state);

bool IsEnd(DecodeHandoffState state);
bool IsEnd(PrefillHandoffState state);

// Moves `state` to `next`. A step that the life of a handoff does not know is a bug of ours: fatal
// in debug builds, INTERNAL in others, and `state` stays.
absl::Status Transition(DecodeHandoffState& state, DecodeHandoffState next);
absl::Status Transition(PrefillHandoffState& state, PrefillHandoffState next);

// The same where the step is known to be legal: one that is not is a bug, and logged as an error.
void MustMove(DecodeHandoffState& state, DecodeHandoffState next);
void MustMove(PrefillHandoffState& state, PrefillHandoffState next);

}  // namespace baton
