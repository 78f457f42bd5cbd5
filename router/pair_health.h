#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/random_id.h"
#include "router/worker_slot.h"

namespace baton {

// Pairs of a decode and a prefill worker between which a handoff has failed though both are alive:
// the network between the two may be cut. A pair gets no handoffs for a while, longer after every
// further failure, and then one is tried again. Neither worker is blamed for it.
//
// Thread-safe.
class PairHealth {
 public:
  struct End {
    WorkerSlot slot;
    InstanceId instance;
    friend auto operator<=>(const End&, const End&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const End& end) {
      return H::combine(std::move(state), end.slot, end.instance);
    }
  };
  using Pair = std::pair<End, End>;  // decode, prefill

  static constexpr std::chrono::milliseconds kFirstPause{500};
  static constexpr std::chrono::milliseconds kLongestPause{2000};

  explicit PairHealth(const Clock& clock = Clock::System()) : clock_(clock) {}

  void NoteFailure(const Pair& pair);
  void NoteSuccess(const Pair& pair);
  // Those that get no handoffs now; without a cost when there is none.
  std::vector<Pair> Cut() const;

 private:
  struct State {
    TimePoint until;
    std::chrono::milliseconds pause{0};
  };

  const Clock& clock_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<Pair, State> pairs_ ABSL_GUARDED_BY(mutex_);  // at most kMostPairs
};

}  // namespace baton
