#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/router/policy_fleet.h"

namespace baton {
namespace {

std::string Session(int i) {
  return absl::StrCat("session ", i);
}

TEST(SessionPolicy, AKeyStaysAndOnlyThoseOfAWorkerThatGoesMove) {
  RouteCandidates candidates{.decode = Workers(0, 8), .prefill = Workers(10, 2)};
  for (RouteCandidate& worker : candidates.decode) {
    worker.identity = 77 + 1000 * worker.worker.value();
  }
  const auto decode = [&](const std::string& session, std::uint64_t random) {
    return ChooseBy(RoutePolicyKind::kSession,
                    {.prompt_tokens = 600, .session = session, .number = random, .random = random},
                    candidates)
        .decode;
  };
  std::map<int, WorkerSlot> places;
  std::map<WorkerSlot, int> shares;
  for (int i = 0; i < 800; ++i) {
    places[i] = decode(Session(i), 1);
    ++shares[places[i]];
    ASSERT_EQ(decode(Session(i), 2), places[i]);
  }
  for (const auto& [worker, share] : shares) {
    EXPECT_NEAR(share, 100, 35);
  }
  // At another router workers have other slots, and stand in another order.
  RouteCandidates elsewhere = candidates;
  std::reverse(elsewhere.decode.begin(), elsewhere.decode.end());
  for (RouteCandidate& worker : elsewhere.decode) {
    worker.worker = WorkerSlot(worker.worker.value() + 40);
  }
  std::swap(candidates, elsewhere);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(decode(Session(i), 3).value(), places[i].value() + 40);
  }
  std::swap(candidates, elsewhere);

  candidates.decode.erase(candidates.decode.begin() + 5);
  for (int i = 0; i < 800; ++i) {
    if (places[i] != WorkerSlot(5)) {
      ASSERT_EQ(decode(Session(i), 4), places[i]);
    }
  }
}

TEST(SessionPolicy, FallsToTheNextWhenTheFirstIsFarBusierThanTheMean) {
  RouteCandidates candidates{.decode = Workers(0, 4)};
  const auto decode = [&] {
    return ChooseBy(RoutePolicyKind::kSession, {.prompt_tokens = 100, .session = "k"}, candidates)
        .decode;
  };
  const WorkerSlot first = decode();
  RouteCandidate& busy = candidates.decode[first.value()];
  busy.in_flight = 3;
  EXPECT_EQ(decode(), first) << "few are no reason";
  busy.in_flight = 4;
  const WorkerSlot second = decode();
  EXPECT_NE(second, first);
  // Twice the mean: 10 x 2 = 20 of 10 + 3 x 10 in all, and this one.
  for (RouteCandidate& worker : candidates.decode) {
    worker.in_flight = 10;
  }
  EXPECT_EQ(decode(), first);
  busy.in_flight = 29;
  EXPECT_EQ(decode(), first) << "30 of 60 are twice the mean";
  busy.in_flight = 32;
  EXPECT_EQ(decode(), second) << "33 are more than 32";
}

TEST(SessionPolicy, WithoutAKeyIsPrefix) {
  RouteCandidates candidates{.decode = Workers(0, 4), .prefill = Workers(10, 3)};
  candidates.decode[1].cached_tokens = 80;
  for (std::uint64_t random = 0; random < 50; ++random) {
    for (const std::size_t tokens : {100, 1000}) {
      const RouteRequest request{.prompt_tokens = tokens, .random = random};
      const RouteDecision a = ChooseBy(RoutePolicyKind::kSession, request, candidates);
      const RouteDecision b = ChooseBy(RoutePolicyKind::kPrefix, request, candidates);
      EXPECT_EQ(a.decode, b.decode);
      EXPECT_EQ(a.prefill, b.prefill);
    }
  }
}

}  // namespace
}  // namespace baton
