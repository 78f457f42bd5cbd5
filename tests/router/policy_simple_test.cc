#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/router/policy_fleet.h"

namespace baton {
namespace {

TEST(LeastLoaded, TakesTheLeastLoadedOfBothKinds) {
  RouteCandidates candidates{.decode = Workers(0, 3), .prefill = Workers(10, 5)};
  candidates.decode[0].in_flight = 3;
  candidates.decode[1].in_flight = 1;
  candidates.decode[2].load.running_sequences = 2;  // sent by another router
  for (const std::size_t i : {0, 1, 3, 4}) {
    candidates.prefill[i].in_flight = static_cast<std::uint32_t>(5 - i);
  }
  candidates.prefill[2].layout = 2;
  const RouteDecision decision =
      ChooseBy(RoutePolicyKind::kLeastLoaded, {.prompt_tokens = 600}, candidates);

  EXPECT_EQ(decision.decode, WorkerSlot(1));
  EXPECT_THAT(decision.prefill,
              testing::ElementsAre(WorkerSlot(14), WorkerSlot(13), WorkerSlot(11)))
      << "the unfit one is not asked, and no more than three";
}

TEST(LeastLoaded, ASplitPromptTakesADecodeWorkerThatHasAPrefillWorker) {
  RouteCandidates candidates{.decode = {Worker(0, 1), Worker(1, 2)}, .prefill = {Worker(10, 2)}};
  candidates.decode[1].in_flight = 7;
  const auto decode = [&](std::size_t tokens) {
    return ChooseBy(RoutePolicyKind::kLeastLoaded, {.prompt_tokens = tokens}, candidates).decode;
  };
  EXPECT_EQ(decode(600), WorkerSlot(1));
  EXPECT_EQ(decode(5), WorkerSlot(0));
}

// T61: with equal load the requests are shared evenly, also when they come one after another.
TEST(LeastLoaded, TiesAreSharedEvenly) {
  RouteCandidates candidates{.decode = Workers(0, 3)};
  for (int request = 0; request < 9; ++request) {
    const RouteDecision decision =
        ChooseBy(RoutePolicyKind::kLeastLoaded, {.prompt_tokens = 5}, candidates);
    ++candidates.decode[decision.decode.value()].dispatched;
  }
  for (const RouteCandidate& worker : candidates.decode) {
    EXPECT_EQ(worker.dispatched, 3u);
  }
}

TEST(RoundRobin, GoesByTheNumber) {
  const RouteCandidates candidates{.decode = Workers(0, 3), .prefill = Workers(10, 2)};
  const auto choose = [&](std::uint64_t number) {
    return ChooseBy(RoutePolicyKind::kRoundRobin, {.prompt_tokens = 600, .number = number},
                    candidates);
  };
  EXPECT_EQ(choose(4).decode, WorkerSlot(1));
  EXPECT_EQ(choose(5).decode, WorkerSlot(2));
  EXPECT_THAT(choose(4).prefill, testing::ElementsAre(WorkerSlot(10), WorkerSlot(11)));
  EXPECT_THAT(choose(5).prefill, testing::ElementsAre(WorkerSlot(11), WorkerSlot(10)));
}

TEST(RoundRobin, GivesEveryPairItsTurn) {
  for (const std::uint32_t decoders : {1, 2, 3, 4}) {
    for (const std::uint32_t prefillers : {1, 2, 3, 4}) {
      const RouteCandidates candidates{.decode = Workers(0, decoders),
                                       .prefill = Workers(10, prefillers)};
      std::map<std::pair<WorkerSlot, WorkerSlot>, int> turns;
      const int requests = static_cast<int>(decoders * prefillers) * 12;
      for (int i = 0; i < requests; ++i) {
        const RouteDecision decision =
            ChooseBy(RoutePolicyKind::kRoundRobin,
                     {.prompt_tokens = 600, .number = static_cast<std::uint64_t>(i)}, candidates);
        ++turns[{decision.decode, decision.prefill.front()}];
      }
      EXPECT_EQ(turns.size(), decoders * prefillers);
      for (const auto& [pair, count] : turns) {
        EXPECT_EQ(count, 12) << decoders << " decode, " << prefillers << " prefill";
      }
    }
  }
}

}  // namespace
}  // namespace baton
