#include "router/pair_health.h"

#include <algorithm>

namespace baton {
namespace {

constexpr std::size_t kMostPairs = 4096;
// After so long without a failure a pair begins anew.
constexpr std::chrono::minutes kForgotten{1};

}  // namespace

void PairHealth::NoteFailure(const Pair& pair) {
  absl::MutexLock lock(&mutex_);
  const TimePoint now = clock_.Now();
  if (pairs_.size() >= kMostPairs) {
    absl::erase_if(pairs_, [now](const auto& entry) { return entry.second.until <= now; });
  }
  if (pairs_.size() >= kMostPairs) {
    return;
  }
  State& state = pairs_[pair];
  if (now < state.until) {
    return;  // of a request that had begun before
  }
  const bool anew = now - state.until > kForgotten;
  state.pause = anew ? kFirstPause : std::min(2 * state.pause, kLongestPause);
  state.until = now + state.pause;
}

void PairHealth::NoteSuccess(const Pair& pair) {
  absl::MutexLock lock(&mutex_);
  pairs_.erase(pair);
}

std::vector<PairHealth::Pair> PairHealth::Cut() const {
  std::vector<Pair> cut;
  absl::MutexLock lock(&mutex_);
  if (!pairs_.empty()) {
    const TimePoint now = clock_.Now();
    for (const auto& [pair, state] : pairs_) {
      if (now < state.until) {
        cut.push_back(pair);
      }
    }
  }
  return cut;
}

}  // namespace baton
