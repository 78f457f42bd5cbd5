#pragma once

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "frontend/completion_session.h"

namespace baton {

// The session of a call, which may come later than the call's cancellation. Thread-safe; a member
// of the call's reactor.
class SessionSlot {
 public:
  // Starts `session`. The call may end meanwhile, and this object with it. Call once at most.
  void Fill(std::shared_ptr<CompletionSession> session, Generator& generator);
  // Stops the session, or the one to come, with `why`.
  void Cancel(const absl::Status& why);
  // The call is over.
  void Detach();

 private:
  absl::Mutex mutex_;  // never held while calling the session
  std::shared_ptr<CompletionSession> session_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
