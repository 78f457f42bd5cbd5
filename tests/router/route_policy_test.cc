#include "router/route_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "router/policy_load.h"
#include "router/policy_prediction.h"

namespace baton {
namespace {

constexpr v1::Path kAuto = v1::PATH_UNSPECIFIED;
constexpr v1::Path kWhole = v1::PATH_COLOCATED;
constexpr v1::Path kSplit = v1::PATH_DISAGGREGATED;
constexpr RoutePolicyKind kAllKinds[] = {RoutePolicyKind::kRoundRobin,
                                         RoutePolicyKind::kLeastLoaded, RoutePolicyKind::kPrefix,
                                         RoutePolicyKind::kSession};

// A prompt takes tokens / rate, a step 10 ms and 1 ms for each sequence, at any depth.
CostModel Costs(double tokens_per_second) {
  MeasuredRates rates{.source = "test", .kv_bytes_per_token = 1000, .layers = 10};
  rates.prefill = {{.prompt_tokens = 1000, .tokens_per_second = tokens_per_second}};
  for (const double batch : {1.0, 8.0}) {
    for (const double depth : {100.0, 1000.0}) {
      rates.decode.push_back({batch, depth, 0.010 + 0.001 * batch});
    }
  }
  return *CostModel::Fit(rates);
}

const CostModel& Usual() {
  static const CostModel costs = Costs(1000);
  return costs;
}
const CostModel& Slow() {
  static const CostModel costs = Costs(500);
  return costs;
}
const TransportRate kNetwork{.name = "tcp", .fixed_seconds = 0.004, .bytes_per_second = 1e8};

RouteCandidate Worker(std::uint32_t slot, std::uint32_t layout = 1) {
  return {.worker = WorkerSlot(slot), .layout = layout, .costs = &Usual(), .transport = &kNetwork};
}

std::vector<RouteCandidate> Workers(std::uint32_t first, std::uint32_t count) {
  std::vector<RouteCandidate> workers;
  for (std::uint32_t i = 0; i < count; ++i) {
    workers.push_back(Worker(first + i));
  }
  return workers;
}

std::string ReasonOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  const auto payload = status.GetPayload("type.googleapis.com/google.rpc.ErrorInfo");
  return payload.has_value() && info.ParseFromString(std::string(*payload)) ? info.reason() : "";
}

RouteDecision ChooseBy(RoutePolicyKind kind,
                       const RouteRequest& request,
                       const RouteCandidates& candidates) {
  return MakeRoutePolicy(kind)->Choose(request, candidates, {}).value();
}

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

TEST(RoutePolicyKind, HasNames) {
  EXPECT_EQ(ParseRoutePolicyKind("round-robin"), RoutePolicyKind::kRoundRobin);
  EXPECT_EQ(ParseRoutePolicyKind("least-loaded"), RoutePolicyKind::kLeastLoaded);
  EXPECT_EQ(ParseRoutePolicyKind("prefix"), RoutePolicyKind::kPrefix);
  EXPECT_EQ(ParseRoutePolicyKind("session"), RoutePolicyKind::kSession);
  EXPECT_EQ(ParseRoutePolicyKind("prefix "), std::nullopt);
  EXPECT_EQ(ParseRoutePolicyKind(""), std::nullopt);
}

// What every policy does with one decode worker (slot 0) and its prefill worker (slot 1).
struct Row {
  std::string name;
  std::size_t prompt_tokens;
  std::uint32_t cached_tokens;  // on the decode worker
  v1::Path path;
  std::string fleet;  // "both", "decode", "prefill", "unfit", "cut", "none"
  // Expected: a reason, or an error's reason.
  v1::RouteReason reason;
  bool split;
  std::string error = "";
};

RouteCandidates FleetOf(const Row& row) {
  RouteCandidates candidates;
  if (row.fleet != "prefill" && row.fleet != "none") {
    candidates.decode = {Worker(0)};
    candidates.decode[0].cached_tokens = row.cached_tokens;
  }
  if (row.fleet != "decode" && row.fleet != "none") {
    candidates.prefill = {Worker(1, row.fleet == "unfit" ? 2 : 1)};
  }
  if (row.fleet == "cut") {
    candidates.cut_pairs = {{WorkerSlot(0), WorkerSlot(1)}};
  }
  return candidates;
}

class EveryPolicy : public testing::TestWithParam<Row> {};

TEST_P(EveryPolicy, FollowsTheRulesOfPaths) {
  const Row& row = GetParam();
  for (const RoutePolicyKind kind : kAllKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    for (const std::string_view session : {"", "a session"}) {
      const auto decision = MakeRoutePolicy(kind)->Choose({.prompt_tokens = row.prompt_tokens,
                                                           .path = row.path,
                                                           .session = session,
                                                           .number = 7,
                                                           .random = 99},
                                                          FleetOf(row), {});
      if (!row.error.empty()) {
        EXPECT_EQ(decision.status().code(), absl::StatusCode::kUnavailable);
        EXPECT_EQ(ReasonOf(decision.status()), row.error);
        continue;
      }
      ASSERT_TRUE(decision.ok()) << decision.status();
      EXPECT_EQ(decision->decode, WorkerSlot(0));
      EXPECT_EQ(decision->reason, row.reason);
      if (row.split) {
        EXPECT_THAT(decision->prefill, testing::ElementsAre(WorkerSlot(1)));
        EXPECT_EQ(decision->cached_tokens, 0u) << "of the prefill worker";
      } else {
        EXPECT_THAT(decision->prefill, testing::IsEmpty());
        EXPECT_EQ(decision->cached_tokens, row.cached_tokens);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    EveryPolicy,
    testing::ValuesIn(std::vector<Row>{
        // T25, T26: the limit itself is split.
        {"1", 1, 0, kAuto, "both", v1::ROUTE_REASON_SHORT_PROMPT, false},
        {"511", 511, 0, kAuto, "both", v1::ROUTE_REASON_SHORT_PROMPT, false},
        {"512", 512, 0, kAuto, "both", v1::ROUTE_REASON_PREFILL_QUICKER, true},
        {"513", 513, 0, kAuto, "both", v1::ROUTE_REASON_PREFILL_QUICKER, true},
        {"8192", 8192, 0, kAuto, "both", v1::ROUTE_REASON_PREFILL_QUICKER, true},
        // Uncached tokens count.
        {"511_left", 1023, 512, kAuto, "both", v1::ROUTE_REASON_PREFIX_CACHED, false},
        {"512_left_of_528", 528, 16, kAuto, "both", v1::ROUTE_REASON_PREFILL_QUICKER, true},
        {"1_left", 1024, 1024, kAuto, "both", v1::ROUTE_REASON_PREFIX_CACHED, false},
        {"short_and_cached", 511, 496, kAuto, "both", v1::ROUTE_REASON_SHORT_PROMPT, false},
        // T36.
        {"long_without_prefill", 512, 0, kAuto, "decode", v1::ROUTE_REASON_NO_PREFILL_WORKER,
         false},
        {"short_without_prefill", 511, 0, kAuto, "decode", v1::ROUTE_REASON_SHORT_PROMPT, false},
        {"long_with_unfit", 900, 0, kAuto, "unfit", v1::ROUTE_REASON_NO_PREFILL_WORKER, false},
        {"long_with_cut", 900, 0, kAuto, "cut", v1::ROUTE_REASON_NO_PREFILL_WORKER, false},
        {"whole", 900, 0, kWhole, "both", v1::ROUTE_REASON_REQUESTED, false},
        {"whole_without_prefill", 900, 0, kWhole, "decode", v1::ROUTE_REASON_REQUESTED, false},
        {"split", 1, 0, kSplit, "both", v1::ROUTE_REASON_REQUESTED, true},
        {"split_cached", 900, 896, kSplit, "both", v1::ROUTE_REASON_REQUESTED, true},
        {"split_without_prefill", 900, 0, kSplit, "decode", {}, false, "NO_PREFILL_WORKER"},
        {"split_with_unfit", 900, 0, kSplit, "unfit", {}, false, "NO_PREFILL_WORKER"},
        {"split_with_cut", 900, 0, kSplit, "cut", {}, false, "NO_PREFILL_WORKER"},
        {"no_decode", 1, 0, kAuto, "prefill", {}, false, "NO_DECODE_WORKER"},
        {"no_decode_split", 900, 0, kSplit, "prefill", {}, false, "NO_DECODE_WORKER"},
        {"nobody", 900, 0, kWhole, "none", {}, false, "NO_DECODE_WORKER"},
    }),
    [](const testing::TestParamInfo<Row>& row) { return row.param.name; });

TEST(RoutePolicies, TheLimitIsAnOption) {
  const RouteCandidates both{.decode = {Worker(0)}, .prefill = {Worker(1)}};
  for (const RoutePolicyKind kind : kAllKinds) {
    const auto policy = MakeRoutePolicy(kind);
    const RouteOptions ten{.policy = kind, .colocate_below_tokens = 10};
    EXPECT_EQ(policy->Choose({.prompt_tokens = 9}, both, ten)->reason,
              v1::ROUTE_REASON_SHORT_PROMPT);
    EXPECT_EQ(policy->Choose({.prompt_tokens = 10}, both, ten)->reason,
              v1::ROUTE_REASON_PREFILL_QUICKER);
    EXPECT_EQ(policy->Choose({.prompt_tokens = 1}, both, {.colocate_below_tokens = 0})->reason,
              v1::ROUTE_REASON_PREFILL_QUICKER);
  }
}

// Fleets of all shapes, with cut pairs, layouts and loads: whatever is chosen is possible, and the
// same when asked again.
TEST(RoutePolicies, ChooseOnlyWhatFits) {
  constexpr std::uint64_t kSeed = 11;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 generator(kSeed);
  const auto draw = [&generator](std::uint64_t below) {
    return static_cast<std::uint32_t>(generator() % below);
  };
  std::map<v1::RouteReason, int> reasons;
  for (int round = 0; round < 4000; ++round) {
    RouteCandidates candidates;
    const std::uint32_t decoders = draw(5) + 1;
    const std::uint32_t prefillers = draw(6);
    const auto any_worker = [&](std::uint32_t slot) {
      RouteCandidate worker = Worker(slot, draw(4) == 0 ? 2 : 1);
      worker.cached_tokens = draw(3) == 0 ? 16 * draw(60) : 0;
      worker.in_flight = draw(3) == 0 ? draw(20) : 0;
      worker.dispatched = draw(100);
      worker.load = {double{1} * (draw(2) * draw(3000)), double{1} * draw(8),
                     double{1} * draw(900)};
      worker.costs = draw(3) == 0 ? &Slow() : &Usual();
      worker.transport = draw(2) == 0 ? nullptr : &kNetwork;
      return worker;
    };
    for (std::uint32_t i = 0; i < decoders; ++i) {
      candidates.decode.push_back(any_worker(10 + i));
    }
    for (std::uint32_t i = 0; i < prefillers; ++i) {
      candidates.prefill.push_back(any_worker(20 + i));
    }
    for (std::uint32_t i = draw(12); i > 0; --i) {
      candidates.cut_pairs.emplace_back(WorkerSlot(10 + draw(decoders)), WorkerSlot(20 + draw(6)));
    }
    const RouteRequest request{.prompt_tokens = draw(1200) + 1,
                               .path = draw(4) == 0 ? (draw(2) == 0 ? kWhole : kSplit) : kAuto,
                               .session = draw(2) == 0 ? "key" : "",
                               .number = draw(1000),
                               .random = generator()};
    const auto fits = [&](WorkerSlot decode, WorkerSlot prefill) {
      const auto layout = [](const std::vector<RouteCandidate>& workers, WorkerSlot slot) {
        const auto found =
            std::find_if(workers.begin(), workers.end(),
                         [slot](const RouteCandidate& worker) { return worker.worker == slot; });
        return found == workers.end() ? 0u : found->layout;
      };
      return layout(candidates.decode, decode) == layout(candidates.prefill, prefill) &&
             std::find(candidates.cut_pairs.begin(), candidates.cut_pairs.end(),
                       std::make_pair(decode, prefill)) == candidates.cut_pairs.end();
    };
    for (const RoutePolicyKind kind : kAllKinds) {
      SCOPED_TRACE(absl::StrCat("round ", round, ", policy ", static_cast<int>(kind)));
      const auto policy = MakeRoutePolicy(kind);
      const auto decision = policy->Choose(request, candidates, {});
      bool possible = false;
      for (const RouteCandidate& decode : candidates.decode) {
        for (const RouteCandidate& prefill : candidates.prefill) {
          possible = possible || fits(decode.worker, prefill.worker);
        }
      }
      if (request.path == kSplit && !possible) {
        ASSERT_EQ(ReasonOf(decision.status()), "NO_PREFILL_WORKER");
        continue;
      }
      ASSERT_TRUE(decision.ok()) << decision.status();
      ++reasons[decision->reason];
      const auto decode = std::find_if(
          candidates.decode.begin(), candidates.decode.end(),
          [&](const RouteCandidate& worker) { return worker.worker == decision->decode; });
      ASSERT_NE(decode, candidates.decode.end());
      ASSERT_LE(decision->prefill.size(), 3u);
      for (const WorkerSlot prefill : decision->prefill) {
        ASSERT_TRUE(fits(decision->decode, prefill));
        ASSERT_EQ(std::count(decision->prefill.begin(), decision->prefill.end(), prefill), 1);
      }
      if (request.path == kAuto) {
        const std::size_t uncached = request.prompt_tokens > decode->cached_tokens
                                         ? request.prompt_tokens - decode->cached_tokens
                                         : 1;
        ASSERT_TRUE(decision->prefill.empty() || uncached >= 512);
        ASSERT_EQ(decision->reason == v1::ROUTE_REASON_SHORT_PROMPT, request.prompt_tokens < 512);
        ASSERT_EQ(decision->reason == v1::ROUTE_REASON_PREFIX_CACHED,
                  request.prompt_tokens >= 512 && uncached < 512);
      }
      const auto again = policy->Choose(request, candidates, {});
      ASSERT_EQ(again->decode, decision->decode);
      ASSERT_EQ(again->prefill, decision->prefill);
    }
  }
  // All of them were met.
  for (const v1::RouteReason reason :
       {v1::ROUTE_REASON_SHORT_PROMPT, v1::ROUTE_REASON_PREFIX_CACHED,
        v1::ROUTE_REASON_PREFILL_QUICKER, v1::ROUTE_REASON_DECODE_QUICKER,
        v1::ROUTE_REASON_NO_PREFILL_WORKER, v1::ROUTE_REASON_REQUESTED}) {
    EXPECT_GT(reasons[reason], 20) << v1::RouteReason_Name(reason);
  }
}

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

// Requests that are under way until told otherwise, as a router keeps them.
struct Burst {
  RoutePolicyKind kind;
  RouteCandidates candidates;
  std::map<WorkerSlot, InFlightLoad> load = {};
  std::map<WorkerSlot, int> decode_share = {};
  std::map<WorkerSlot, int> prefill_share = {};

  RouteDecision Send(RouteRequest request, std::mt19937_64& generator) {
    RouteCandidates now = candidates;
    for (auto* workers : {&now.decode, &now.prefill}) {
      for (RouteCandidate& worker : *workers) {
        worker.load = WithInFlight(worker.load, load[worker.worker]);
        worker.in_flight =
            static_cast<std::uint32_t>(decode_share[worker.worker] + prefill_share[worker.worker]);
        worker.dispatched = worker.in_flight;
      }
    }
    request.random = generator();
    const RouteDecision decision = ChooseBy(kind, request, now);
    const RoutedLoad more = LoadOf(request, decision);
    load[decision.decode] += more.on_decode;
    ++decode_share[decision.decode];
    if (!decision.prefill.empty()) {
      load[decision.prefill.front()] += more.on_prefill;
      ++prefill_share[decision.prefill.front()];
    }
    return decision;
  }
};

// 64 equal prompts at once on 8 workers: nobody gets more than twice the mean, also when one worker
// holds the prefix already.
TEST(RoutePolicies, ABurstOfEqualPromptsIsSpread) {
  for (const RoutePolicyKind kind : kAllKinds) {
    for (const std::size_t tokens : {40, 300, 500, 2000}) {
      for (const std::uint32_t cached : {0, 32, 288}) {
        SCOPED_TRACE(absl::StrCat("policy ", static_cast<int>(kind), ", ", tokens, " tokens, ",
                                  cached, " cached"));
        if (cached >= tokens) {
          continue;
        }
        Burst burst{kind, {.decode = Workers(0, 8), .prefill = Workers(10, 8)}};
        burst.candidates.decode[3].cached_tokens = cached;
        burst.candidates.prefill[5].cached_tokens = cached;
        std::mt19937_64 generator(tokens);
        for (std::uint64_t i = 0; i < 64; ++i) {
          burst.Send({.prompt_tokens = tokens, .session = "one", .number = i}, generator);
        }
        for (const auto& [worker, share] : burst.decode_share) {
          EXPECT_LE(share, 16) << "decode worker " << worker.value();
        }
        for (const auto& [worker, share] : burst.prefill_share) {
          EXPECT_LE(share, 16) << "prefill worker " << worker.value();
        }
      }
    }
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
