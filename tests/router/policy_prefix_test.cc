#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "router/policy_prediction.h"
#include "tests/router/policy_fleet.h"

namespace baton {
namespace {

// The decode workers that a request gets, whatever its random bits.
std::set<std::uint32_t> DecodeChoices(RouteRequest request, const RouteCandidates& candidates) {
  std::mt19937_64 generator(1);
  std::set<std::uint32_t> choices;
  for (int i = 0; i < 200; ++i) {
    request.random = generator();
    choices.insert(ChooseBy(RoutePolicyKind::kPrefix, request, candidates).decode.value());
  }
  return choices;
}

TEST(PrefixPolicy, GoesWhereThePrefixIs) {
  RouteCandidates candidates{.decode = Workers(0, 4), .prefill = Workers(10, 3)};
  candidates.decode[2].cached_tokens = 400;
  candidates.decode[3].cached_tokens = 192;
  EXPECT_THAT(DecodeChoices({.prompt_tokens = 500}, candidates), testing::ElementsAre(2));

  // A prefill worker that holds the prompt is worth more than any decode worker.
  candidates.prefill[1].cached_tokens = 1600;
  const RouteDecision decision =
      ChooseBy(RoutePolicyKind::kPrefix, {.prompt_tokens = 2000, .random = 5}, candidates);
  EXPECT_EQ(decision.prefill.front(), WorkerSlot(11));
  EXPECT_EQ(decision.prefill.size(), 3u);
  EXPECT_EQ(decision.cached_tokens, 1600u);
}

TEST(PrefixPolicy, ChoosesAtRandomAmongNearEquals) {
  RouteCandidates candidates{.decode = Workers(0, 4), .prefill = Workers(10, 3)};
  EXPECT_THAT(DecodeChoices({.prompt_tokens = 300}, candidates), testing::SizeIs(4));
  // 16 tokens of 300 are less than 5% of 388 ms, 32 are more.
  candidates.decode[2].cached_tokens = 16;
  EXPECT_THAT(DecodeChoices({.prompt_tokens = 300}, candidates), testing::SizeIs(4));
  candidates.decode[2].cached_tokens = 32;
  EXPECT_THAT(DecodeChoices({.prompt_tokens = 300}, candidates), testing::ElementsAre(2));

  std::mt19937_64 generator(1);
  std::map<std::pair<WorkerSlot, WorkerSlot>, int> pairs;
  for (int i = 0; i < 2400; ++i) {
    const RouteDecision decision = ChooseBy(
        RoutePolicyKind::kPrefix, {.prompt_tokens = 1000, .random = generator()}, candidates);
    ++pairs[{decision.decode, decision.prefill.front()}];
  }
  EXPECT_EQ(pairs.size(), 12u) << "each decode worker with each prefill worker";
  for (const auto& [pair, count] : pairs) {
    EXPECT_NEAR(count, 200, 80);
  }
}

// T61 again: random, yet nobody is left out.
TEST(PrefixPolicy, SharesDistinctPromptsEvenly) {
  std::mt19937_64 generator(3);
  RouteCandidates candidates{.decode = Workers(0, 8)};
  for (int i = 0; i < 400; ++i) {
    const RouteDecision decision = ChooseBy(
        RoutePolicyKind::kPrefix, {.prompt_tokens = 100, .random = generator()}, candidates);
    ++candidates.decode[decision.decode.value()].dispatched;
  }
  for (const RouteCandidate& worker : candidates.decode) {
    EXPECT_NEAR(static_cast<double>(worker.dispatched), 50, 5);
  }
}

// A prompt whose beginning a decode worker and a prefill worker both hold: nothing need travel.
TEST(PrefixPolicy, WhatADecodeWorkerHoldsIsNotFetchedFromAPrefillWorker) {
  RouteCandidates candidates{.decode = Workers(0, 2), .prefill = Workers(2, 1)};
  candidates.decode[1].cached_tokens = 2048;
  candidates.prefill[0].cached_tokens = 2048;
  EXPECT_THAT(DecodeChoices({.prompt_tokens = 2064}, candidates), testing::ElementsAre(1));
}

// T63: 500 tokens, 448 of them on a busy worker, none on an idle one. The busy one is the better by
// the formula until its queue is 448 tokens long, and near-equal 5% around that.
TEST(PrefixPolicy, FlipsAtTheQueueThatTheFormulaSays) {
  const auto choices = [](double queued_tokens) {
    RouteCandidates candidates{.decode = Workers(0, 2)};
    candidates.decode[0].cached_tokens = 448;
    candidates.decode[0].load.queued_prefill_tokens = queued_tokens;
    return DecodeChoices({.prompt_tokens = 500}, candidates);
  };
  constexpr double kPace = kPacedTokens * 0.011;
  constexpr double kIdle = 0.500 + kPace;
  constexpr double kBusy = 0.052 + kPace;  // and the queue
  const double may_lose = 1000 * (kIdle / (1 + kNearEqual) - kBusy);
  const double must_lose = 1000 * (kIdle * (1 + kNearEqual) - kBusy);
  EXPECT_THAT(choices(0), testing::ElementsAre(0));
  EXPECT_THAT(choices(may_lose - 1), testing::ElementsAre(0));
  EXPECT_THAT(choices(may_lose + 1), testing::ElementsAre(0, 1));
  EXPECT_THAT(choices(must_lose - 1), testing::ElementsAre(0, 1));
  EXPECT_THAT(choices(must_lose + 1), testing::ElementsAre(1));
}

// Sequences that run on the worker slow the prompt down, are held up by it, and slow down its
// answer.
TEST(PrefixPolicy, FlipsAtTheNumberOfRunningSequencesThatTheFormulaSays) {
  const auto cost = [](double running, double uncached) {
    const double step = 0.010 + 0.001 * (running + 1);
    const double shared = running > 0 ? 0.001 * running : 0;  // one chunk
    return uncached * 0.001 * (1 + kStallWeight * running) + shared + kPacedTokens * step;
  };
  int flips = 0;
  bool hit = true;
  for (int running = 0; running < 30; ++running) {
    RouteCandidates candidates{.decode = Workers(0, 2)};
    candidates.decode[0].cached_tokens = 192;
    candidates.decode[0].load.running_sequences = running;
    candidates.decode[0].load.depth_tokens = 300;
    const double busy = cost(running, 248 - 192);
    const double idle = cost(0, 248);
    const auto choices = DecodeChoices({.prompt_tokens = 248}, candidates);
    const bool may_hit = busy <= idle * (1 + kNearEqual);
    const bool may_miss = idle <= busy * (1 + kNearEqual);
    ASSERT_EQ(choices.contains(0), may_hit) << running << " running";
    ASSERT_EQ(choices.contains(1), may_miss) << running << " running";
    flips += may_hit != hit ? 1 : 0;
    hit = may_hit;
  }
  EXPECT_EQ(flips, 1);
}

// A prompt of 600 tokens is split until the queue of the only prefill worker makes the decode
// worker clearly quicker.
TEST(PrefixPolicy, KeepsAPromptWholeWhenTheDecodeWorkerIsClearlyQuicker) {
  const auto reason = [](double queued_tokens, double running) {
    RouteCandidates candidates{.decode = {Worker(0)}, .prefill = {Worker(1)}};
    candidates.prefill[0].load.queued_prefill_tokens = queued_tokens;
    candidates.decode[0].load.running_sequences = running;
    return ChooseBy(RoutePolicyKind::kPrefix, {.prompt_tokens = 600}, candidates).reason;
  };
  // 608,000 bytes take 6.08 ms; a piece of 10 layers and 3 chunks is what is not hidden.
  const double transfer = 0.004 + 0.00608 / 30;
  const double limit = 1000 * (0.6 * kWholePromptFactor + kWholePromptSeconds - 0.6 - transfer);
  EXPECT_EQ(reason(0, 0), v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_EQ(reason(limit - 1, 0), v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_EQ(reason(limit + 1, 0), v1::ROUTE_REASON_DECODE_QUICKER);
  // What it would do to the four that run there: 4 x 600 ms of stall, and 3 shared steps.
  const double harm = 1000 * (kStallWeight * 4 * 0.6 + kWholePromptFactor * 3 * 0.004);
  EXPECT_EQ(reason(limit + harm - 1, 4), v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_EQ(reason(limit + harm + 1, 4), v1::ROUTE_REASON_DECODE_QUICKER);
}

// Half of it is cached there, and the prefill worker would have to compute all.
TEST(PrefixPolicy, KeepsALongPromptWholeWhereHalfOfItIsCached) {
  RouteCandidates candidates{.decode = {Worker(0)}, .prefill = {Worker(1)}};
  candidates.decode[0].cached_tokens = 512;
  const RouteDecision decision =
      ChooseBy(RoutePolicyKind::kPrefix, {.prompt_tokens = 1024}, candidates);
  EXPECT_EQ(decision.reason, v1::ROUTE_REASON_DECODE_QUICKER);
  EXPECT_EQ(decision.cached_tokens, 512u);
  EXPECT_DOUBLE_EQ(decision.first_token_seconds, 0.512);
}

TEST(PrefixPolicy, PredictsWhatTheCostModelPredicts) {
  RouteCandidates candidates{.decode = {Worker(0)}, .prefill = {Worker(1)}};
  candidates.decode[0].cached_tokens = 64;
  candidates.prefill[0].cached_tokens = 128;
  candidates.prefill[0].load = {
      .queued_prefill_tokens = 300, .running_sequences = 1, .depth_tokens = 50};
  const RouteRequest request{.prompt_tokens = 1000, .path = kSplit};
  const auto way = RoutePrediction(request, candidates, {}).BestBy(0);
  ASSERT_TRUE(way.has_value() && way->prefill.has_value());
  const FirstTokenTime expected = PredictDisaggregated(
      {Usual(), candidates.prefill[0].load, kNetwork}, {.tokens = 1000, .cached_tokens = 128},
      {.tokens = 1000, .cached_tokens = 64});
  EXPECT_DOUBLE_EQ(way->first_token_seconds, expected.first_token_seconds());
  EXPECT_DOUBLE_EQ(way->cost, expected.decoding_seconds() + kStallWeight * expected.stall_seconds +
                                  kPacedTokens * 0.011);
  EXPECT_GT(expected.exposed_seconds, 0);
  EXPECT_GT(expected.stall_seconds, 0);
  EXPECT_DOUBLE_EQ(ChooseBy(RoutePolicyKind::kPrefix, request, candidates).first_token_seconds,
                   expected.first_token_seconds());
}

TEST(PrefixPolicy, TakesAnotherPrefillWorkerWhereAPairIsCut) {
  RouteCandidates candidates{.decode = Workers(0, 2), .prefill = Workers(10, 3)};
  candidates.prefill[0].cached_tokens = 960;
  candidates.prefill[1].cached_tokens = 480;
  candidates.decode[0].cached_tokens = 480;  // else the same to both
  candidates.cut_pairs = {{WorkerSlot(0), WorkerSlot(10)}};
  for (std::uint64_t random = 0; random < 20; ++random) {
    const RouteDecision decision =
        ChooseBy(RoutePolicyKind::kPrefix, {.prompt_tokens = 1000, .random = random}, candidates);
    EXPECT_EQ(decision.decode, WorkerSlot(1));
    EXPECT_EQ(decision.prefill.front(), WorkerSlot(10));
    const RouteDecision only = ChooseBy(RoutePolicyKind::kPrefix,
                                        {.prompt_tokens = 1000, .path = kSplit, .random = random},
                                        {.decode = {candidates.decode[0]},
                                         .prefill = candidates.prefill,
                                         .cut_pairs = candidates.cut_pairs});
    EXPECT_THAT(only.prefill, testing::ElementsAre(WorkerSlot(11), WorkerSlot(12)));
  }
}

// Of 8 workers one computes at half the rate.
TEST(PrefixPolicy, ASlowWorkerGetsLess) {
  for (const std::size_t tokens : {300, 2000}) {
    Burst burst{RoutePolicyKind::kPrefix, {.decode = Workers(0, 8), .prefill = Workers(10, 8)}};
    burst.candidates.decode[2].costs = &Slow();
    burst.candidates.prefill[2].costs = &Slow();
    std::mt19937_64 generator(tokens);
    for (std::uint64_t i = 0; i < 150; ++i) {
      burst.Send({.prompt_tokens = tokens, .number = i}, generator);
    }
    auto& share = tokens < 512 ? burst.decode_share : burst.prefill_share;
    const int slow = share[WorkerSlot(tokens < 512 ? 2 : 12)];
    EXPECT_NEAR(slow, 150 / 15.0, 4) << "half the share of the others";
  }
}

// F27: requests with one hot prefix go to its worker until that is as busy as the others would be
// with the whole prompt, or has twice the mean, then elsewhere too.
TEST(PrefixPolicy, AHotPrefixSpreadsWhenItsWorkerIsBusy) {
  Burst burst{RoutePolicyKind::kPrefix, {.decode = Workers(0, 4)}};
  burst.candidates.decode[1].cached_tokens = 400;
  std::mt19937_64 generator(9);
  const RouteRequest request{.prompt_tokens = 420};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(burst.Send(request, generator).decode, WorkerSlot(1)) << i;
  }
  for (int i = 0; i < 60; ++i) {
    burst.Send(request, generator);
  }
  EXPECT_EQ(burst.decode_share.size(), 4u);
  EXPECT_GT(burst.decode_share[WorkerSlot(1)], 63 / 4);
  EXPECT_LE(burst.decode_share[WorkerSlot(1)], 2 * 63 / 4 + 1);
}

}  // namespace
}  // namespace baton
