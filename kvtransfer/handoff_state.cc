#include "kvtransfer/handoff_state.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"

namespace baton {
namespace {

using Decode = DecodeHandoffState;
using Prefill = PrefillHandoffState;

bool IsLegal(Decode from, Decode to) {
  if (to == Decode::kFailed || to == Decode::kCancelled) {
    return !IsEnd(from);
  }
  switch (from) {
    case Decode::kLeased:
      return to == Decode::kRequested;
    case Decode::kRequested:
      return to == Decode::kFetching;
    case Decode::kFetching:
      return to == Decode::kLanded;
    case Decode::kLanded:
      return to == Decode::kAdopted;
    case Decode::kAdopted:
      return to == Decode::kDone;
    case Decode::kDone:
    case Decode::kFailed:
    case Decode::kCancelled:
      return false;
  }
  return false;
}

bool IsLegal(Prefill from, Prefill to) {
  if (to == Prefill::kFailed || to == Prefill::kCancelled || to == Prefill::kExpired) {
    return !IsEnd(from);
  }
  switch (from) {
    case Prefill::kQueued:
      return to == Prefill::kComputing;
    case Prefill::kComputing:
      return to == Prefill::kServing;
    case Prefill::kServing:
      return to == Prefill::kServed;
    case Prefill::kServed:
      // Back to serving when damaged or missing pieces are fetched again.
      return to == Prefill::kReleased || to == Prefill::kServing;
    case Prefill::kReleased:
    case Prefill::kFailed:
    case Prefill::kCancelled:
    case Prefill::kExpired:
      return false;
  }
  return false;
}

template <typename State>
absl::Status TransitionImpl(State& state, State next) {
  if (!IsLegal(state, next)) {
    BATON_DCHECK(!"illegal handoff transition");
    return absl::InternalError(absl::StrCat("handoff cannot go from ", std::string(ToString(state)),
                                            " to ", std::string(ToString(next))));
  }
  state = next;
  return absl::OkStatus();
}

void LogIfIllegal(const absl::Status& moved) {
  if (!moved.ok()) {
    LogEvent(LogLevel::kError, "handoff.illegal_transition", {{"why", moved}});
  }
}

}  // namespace

std::string_view ToString(DecodeHandoffState state) {
  switch (state) {
    case Decode::kLeased:
      return "kLeased";
    case Decode::kRequested:
      return "kRequested";
    case Decode::kFetching:
      return "kFetching";
    case Decode::kLanded:
      return "kLanded";
    case Decode::kAdopted:
      return "kAdopted";
    case Decode::kDone:
      return "kDone";
    case Decode::kFailed:
      return "kFailed";
    case Decode::kCancelled:
      return "kCancelled";
  }
  return "unknown";
}

std::string_view ToString(PrefillHandoffState state) {
  switch (state) {
    case Prefill::kQueued:
      return "kQueued";
    case Prefill::kComputing:
      return "kComputing";
    case Prefill::kServing:
      return "kServing";
    case Prefill::kServed:
      return "kServed";
    case Prefill::kReleased:
      return "kReleased";
    case Prefill::kFailed:
      return "kFailed";
    case Prefill::kCancelled:
      return "kCancelled";
    case Prefill::kExpired:
      return "kExpired";
  }
  return "unknown";
}

bool IsEnd(DecodeHandoffState state) {
  return state == Decode::kDone || state == Decode::kFailed || state == Decode::kCancelled;
}

bool IsEnd(PrefillHandoffState state) {
  return state == Prefill::kReleased || state == Prefill::kFailed || state == Prefill::kCancelled ||
         state == Prefill::kExpired;
}

absl::Status Transition(DecodeHandoffState& state, DecodeHandoffState next) {
  return TransitionImpl(state, next);
}

absl::Status Transition(PrefillHandoffState& state, PrefillHandoffState next) {
  return TransitionImpl(state, next);
}

void MustMove(DecodeHandoffState& state, DecodeHandoffState next) {
  LogIfIllegal(Transition(state, next));
}
void MustMove(PrefillHandoffState& state, PrefillHandoffState next) {
  LogIfIllegal(Transition(state, next));
}

}  // namespace baton
