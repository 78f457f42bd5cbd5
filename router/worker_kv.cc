#include "router/worker_kv.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr std::size_t kHashBytes = sizeof(PrefixHash);

absl::Status CheckHashes(const char* field, const std::string& bytes) {
  if (bytes.size() % kHashBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", bytes.size(), " bytes are no whole number of hashes"));
  }
  return absl::OkStatus();
}

// Proto lets through numbers that the enum has no name for.
absl::Status CheckTier(const char* field, v1::KvTier tier) {
  if (!v1::KvTier_IsValid(tier)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", static_cast<int>(tier), " is no tier"));
  }
  return absl::OkStatus();
}

std::vector<PrefixHash> ToHashes(const std::string& bytes) {
  std::vector<PrefixHash> hashes(bytes.size() / kHashBytes);
  if (!hashes.empty()) {
    std::memcpy(hashes.data(), bytes.data(), bytes.size());
  }
  return hashes;
}

}  // namespace

absl::StatusOr<WorkerKv::Outcome> WorkerKv::TakeSnapshot(FeedId feed, const v1::KvSnapshot& part) {
  RETURN_IF_ERROR(CheckTier("snapshot.tier", part.tier()));
  RETURN_IF_ERROR(CheckHashes("snapshot.hashes", part.hashes()));
  absl::MutexLock lock(&mutex_);
  if (part.first()) {
    ClearLocked();
    followed_ = feed;
    next_event_ = part.next_event();
  } else if (followed_ != feed || complete_) {
    return Outcome::kIgnored;
  }
  index_.Add(part.tier(), slot_, ToHashes(part.hashes()));
  complete_ = part.last();
  return Outcome::kTaken;
}

absl::StatusOr<WorkerKv::Outcome> WorkerKv::TakeEvents(FeedId feed, const v1::KvEvents& events) {
  for (const v1::KvEvent& event : events.events()) {
    RETURN_IF_ERROR(CheckTier("events.tier", event.tier()));
    RETURN_IF_ERROR(CheckHashes("events.stored", event.stored()));
    RETURN_IF_ERROR(CheckHashes("events.removed", event.removed()));
  }
  absl::MutexLock lock(&mutex_);
  if (followed_ != feed) {
    return Outcome::kIgnored;
  }
  if (!complete_ || events.first_event() != next_event_) {
    ClearLocked();
    return Outcome::kSnapshotWanted;
  }
  next_event_ += static_cast<std::uint64_t>(events.events_size());
  for (const v1::KvEvent& event : events.events()) {
    if (event.cleared()) {
      index_.Clear(event.tier(), slot_);
    }
    index_.Add(event.tier(), slot_, ToHashes(event.stored()));
    index_.Remove(event.tier(), slot_, ToHashes(event.removed()));
  }
  return Outcome::kTaken;
}

bool WorkerKv::Drop(FeedId feed) {
  absl::MutexLock lock(&mutex_);
  if (followed_ != feed) {
    return false;
  }
  ClearLocked();
  return true;
}

void WorkerKv::Clear() {
  absl::MutexLock lock(&mutex_);
  ClearLocked();
}

void WorkerKv::ClearLocked() {
  index_.Clear(slot_);
  followed_.reset();
  complete_ = false;
}

}  // namespace baton
