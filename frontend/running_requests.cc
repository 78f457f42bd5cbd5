#include "frontend/running_requests.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "proto/status_conversion.h"

namespace baton {

RunningRequests::RunningRequests(std::size_t limit) : limit_(limit) {}

absl::Status RunningRequests::CheckIntake() const {
  absl::MutexLock lock(&mutex_);
  return CheckIntakeLocked();
}

absl::Status RunningRequests::CheckIntakeLocked() const {
  constexpr std::chrono::milliseconds kRetryAfter{1000};
  if (intake_stopped_) {
    return WithReason(
        WithRetryAfter(absl::UnavailableError("server is shutting down"), kRetryAfter),
        "SHUTTING_DOWN");
  }
  if (in_flight_ >= limit_) {
    return WithReason(WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(
                                         limit_, " requests are running, which is the limit")),
                                     kRetryAfter),
                      "TOO_MANY_REQUESTS");
  }
  return absl::OkStatus();
}

absl::Status RunningRequests::Enter(const std::string& id,
                                    const std::shared_ptr<CompletionSession>& session) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckIntakeLocked());
  if (!sessions_.try_emplace(id, session).second) {
    return FieldError(absl::StatusCode::kAlreadyExists, "request_id",
                      absl::StrCat("\"", id, "\" is already running"));
  }
  ++in_flight_;
  return absl::OkStatus();
}

void RunningRequests::End(const std::string& id, const std::string& outcome) {
  absl::MutexLock lock(&mutex_);
  sessions_.erase(id);
  ++outcomes_[outcome];
}

void RunningRequests::Leave() {
  absl::MutexLock lock(&mutex_);
  --in_flight_;
}

void RunningRequests::CountRefusal(absl::StatusCode code) {
  absl::MutexLock lock(&mutex_);
  ++outcomes_[absl::StatusCodeToString(code)];
}

void RunningRequests::StopIntake() {
  absl::MutexLock lock(&mutex_);
  intake_stopped_ = true;
}

std::size_t RunningRequests::in_flight() const {
  absl::MutexLock lock(&mutex_);
  return in_flight_;
}

std::shared_ptr<CompletionSession> RunningRequests::Find(const std::string& id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.lock();
}

std::vector<std::shared_ptr<CompletionSession>> RunningRequests::All() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<CompletionSession>> all;
  for (const auto& [id, session] : sessions_) {
    if (std::shared_ptr<CompletionSession> alive = session.lock()) {
      all.push_back(std::move(alive));
    }
  }
  return all;
}

std::map<std::string, std::uint64_t> RunningRequests::outcomes() const {
  absl::MutexLock lock(&mutex_);
  return outcomes_;
}

}  // namespace baton
