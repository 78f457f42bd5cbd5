#include "frontend/session_slot.h"

#include <utility>

namespace baton {

void SessionSlot::Fill(std::shared_ptr<CompletionSession> session, Generator& generator) {
  std::optional<absl::Status> cancelled;
  {
    absl::MutexLock lock(&mutex_);
    session_ = session;
    cancelled = cancelled_;
  }
  session->Start(generator);  // from here on no member may be touched
  if (cancelled.has_value()) {
    session->Stop(*cancelled);
  }
}

void SessionSlot::Cancel(const absl::Status& why) {
  std::shared_ptr<CompletionSession> session;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = why;
    session = session_;
  }
  if (session != nullptr) {
    session->Stop(why);
  }
}

void SessionSlot::Detach() {
  std::shared_ptr<CompletionSession> session;
  {
    absl::MutexLock lock(&mutex_);
    session = session_;
  }
  if (session != nullptr) {
    session->Detach();
  }
}

}  // namespace baton
