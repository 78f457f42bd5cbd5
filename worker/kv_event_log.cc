#include "worker/kv_event_log.h"

#include <algorithm>

namespace baton {

void KvEventLog::SetListener(std::function<void()> listener) {
  absl::MutexLock lock(&mutex_);
  listener_ = std::move(listener);
}

bool KvEventLog::CallOnNextChange(std::uint64_t next_event) {
  absl::MutexLock lock(&mutex_);
  call_listener_ = next_event_ <= next_event;
  return call_listener_;
}

void KvEventLog::Reserve(std::size_t hashes) {
  absl::MutexLock lock(&mutex_);
  held_.reserve(hashes);
  place_.reserve(hashes);
}

void KvEventLog::Add(const KvChange& change) {
  absl::MutexLock lock(&mutex_);
  const auto place = static_cast<std::size_t>(next_event_ % window_);
  if (place == changes_.size()) {
    changes_.push_back(change);
  } else {
    changes_[place] = change;
  }
  ++next_event_;
  change.stored ? Hold(change.hash) : LetGo(change.hash);
  if (call_listener_ && listener_) {
    call_listener_ = false;
    listener_();
  }
}

void KvEventLog::Hold(const PrefixHash& hash) {
  if (place_.try_emplace(hash, held_.size()).second) {
    held_.push_back(hash);
  }
}

void KvEventLog::LetGo(const PrefixHash& hash) {
  const auto it = place_.find(hash);
  if (it == place_.end()) {
    return;
  }
  const std::size_t place = it->second;
  place_.erase(it);
  if (place + 1 < held_.size()) {
    held_[place] = held_.back();
    place_[held_[place]] = place;
  }
  held_.pop_back();
}

std::uint64_t KvEventLog::next_event() const {
  absl::MutexLock lock(&mutex_);
  return next_event_;
}

KvEventLog::Snapshot KvEventLog::TakeSnapshot() const {
  absl::MutexLock lock(&mutex_);
  return {.next_event = next_event_, .hashes = held_};
}

std::optional<std::vector<KvChange>> KvEventLog::ReadFrom(std::uint64_t first_event,
                                                          std::size_t most) const {
  absl::MutexLock lock(&mutex_);
  if (first_event > next_event_ || next_event_ - first_event > changes_.size()) {
    return std::nullopt;
  }
  const std::uint64_t end = first_event + std::min<std::uint64_t>(most, next_event_ - first_event);
  std::vector<KvChange> changes;
  changes.reserve(static_cast<std::size_t>(end - first_event));
  for (std::uint64_t number = first_event; number < end; ++number) {
    changes.push_back(changes_[static_cast<std::size_t>(number % window_)]);
  }
  return changes;
}

}  // namespace baton
