#include "kvtransfer/handoff_state.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace baton {
namespace {

// A step that is not in the life of a handoff is fatal where checks are on, and an error that
// changes nothing elsewhere.
template <typename State>
void ExpectRefused(State from, State to) {
  SCOPED_TRACE(std::string(ToString(from)) + " -> " + std::string(ToString(to)));
#ifdef NDEBUG
  State state = from;
  EXPECT_EQ(Transition(state, to).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(state, from);
#else
  State state = from;
  EXPECT_DEATH({ Transition(state, to).IgnoreError(); }, "illegal handoff transition");
#endif
}

template <typename State>
void ExpectOnly(const std::vector<State>& all, const std::set<std::pair<State, State>>& legal) {
  int refused = 0;
  for (const State from : all) {
    for (const State to : all) {
      State state = from;
      if (legal.contains({from, to})) {
        EXPECT_TRUE(Transition(state, to).ok()) << ToString(from) << " -> " << ToString(to);
        EXPECT_EQ(state, to);
      } else if (++refused % 7 == 1) {
        // A death test forks; one in seven of the many will do.
        ExpectRefused(from, to);
      }
    }
  }
}

TEST(HandoffState, DecodeSideKnowsTheseStepsOnly) {
  using S = DecodeHandoffState;
  const std::vector<S> open = {S::kLeased, S::kRequested, S::kFetching, S::kLanded, S::kAdopted};
  std::set<std::pair<S, S>> legal = {{S::kLeased, S::kRequested},
                                     {S::kRequested, S::kFetching},
                                     {S::kFetching, S::kLanded},
                                     {S::kLanded, S::kAdopted},
                                     {S::kAdopted, S::kDone}};
  for (const S state : open) {
    legal.insert({state, S::kFailed});
    legal.insert({state, S::kCancelled});
  }
  ExpectOnly<S>({S::kLeased, S::kRequested, S::kFetching, S::kLanded, S::kAdopted, S::kDone,
                 S::kFailed, S::kCancelled},
                legal);
}

TEST(HandoffState, PrefillSideKnowsTheseStepsOnly) {
  using S = PrefillHandoffState;
  const std::vector<S> open = {S::kQueued, S::kComputing, S::kServing, S::kServed};
  std::set<std::pair<S, S>> legal = {{S::kQueued, S::kComputing},
                                     {S::kComputing, S::kServing},
                                     {S::kServing, S::kServed},
                                     {S::kServed, S::kServing},
                                     {S::kServed, S::kReleased}};
  for (const S state : open) {
    legal.insert({state, S::kFailed});
    legal.insert({state, S::kCancelled});
    legal.insert({state, S::kExpired});
  }
  ExpectOnly<S>({S::kQueued, S::kComputing, S::kServing, S::kServed, S::kReleased, S::kFailed,
                 S::kCancelled, S::kExpired},
                legal);
}

TEST(HandoffState, NamesAreTheEnumerators) {
  EXPECT_EQ(ToString(DecodeHandoffState::kLanded), "kLanded");
  EXPECT_EQ(ToString(PrefillHandoffState::kExpired), "kExpired");
}

}  // namespace
}  // namespace baton
