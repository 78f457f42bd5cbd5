#include "router/route_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "tests/router/policy_fleet.h"

namespace baton {
namespace {

constexpr RoutePolicyKind kAllKinds[] = {RoutePolicyKind::kRoundRobin,
                                         RoutePolicyKind::kLeastLoaded, RoutePolicyKind::kPrefix,
                                         RoutePolicyKind::kSession};

std::string ReasonOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  const auto payload = status.GetPayload("type.googleapis.com/google.rpc.ErrorInfo");
  return payload.has_value() && info.ParseFromString(std::string(*payload)) ? info.reason() : "";
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

}  // namespace
}  // namespace baton
