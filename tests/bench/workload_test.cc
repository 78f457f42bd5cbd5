#include "bench/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr PromptVocabulary kVocabulary{.first_token = 0, .tokens = 40'000};

std::vector<std::uint32_t> Tokens(const Workload& workload, std::size_t request) {
  const LoadRequest& made = workload.requests[request];
  return MakePromptTokens(made.shape, workload.hashed_tokens, kVocabulary, false, made.seed);
}

bool IsByArrival(const Workload& workload) {
  return std::is_sorted(
      workload.requests.begin(), workload.requests.end(),
      [](const LoadRequest& a, const LoadRequest& b) { return a.shape.arrival < b.shape.arrival; });
}

std::size_t CountKind(const Workload& workload, const std::string& kind) {
  return static_cast<std::size_t>(
      std::count_if(workload.requests.begin(), workload.requests.end(),
                    [&](const LoadRequest& request) { return request.kind == kind; }));
}

TEST(UniformWorkload, GivesEveryPromptTokensOfItsOwn) {
  const Workload one = MakeUniformWorkload({.prompt = 40, .output = 3}, {}, 3, 1);
  const Workload other = MakeUniformWorkload({.prompt = 40, .output = 3}, {}, 3, 2);

  ASSERT_EQ(one.requests.size(), 3);
  EXPECT_EQ(one.requests[0].shape.output_tokens, 3);
  EXPECT_EQ(Tokens(one, 0).size(), 40);
  const std::set<std::vector<std::uint32_t>> different{Tokens(one, 0), Tokens(one, 1),
                                                       Tokens(other, 0), Tokens(other, 1)};
  EXPECT_EQ(different.size(), 4);
}

TEST(MixedWorkload, LongPromptsComeEvenlyAmongChats) {
  const Workload workload = MakeMixedWorkload(
      {.chats_per_second = 10, .long_per_second = 0.5, .duration = seconds(20)}, 1);

  EXPECT_TRUE(IsByArrival(workload));
  EXPECT_EQ(CountKind(workload, "long"), 10);
  EXPECT_EQ(CountKind(workload, "chat"), 200);
  Duration expected = seconds(1);
  for (const LoadRequest& request : workload.requests) {
    EXPECT_LT(request.shape.arrival, seconds(20));
    if (request.kind == "long") {
      EXPECT_EQ(request.shape.arrival, expected);
      EXPECT_EQ(request.shape.prompt_tokens, 2048);
      expected += seconds(2);
    }
  }
}

TEST(SessionWorkload, TurnsRepeatWhatWasSaid) {
  const Workload workload = MakeSessionWorkload({.system_tokens = 32,
                                                 .turns = 3,
                                                 .turn = {.prompt = 16, .output = 16},
                                                 .between_turns = seconds(10),
                                                 .sessions = 1},
                                                1);

  ASSERT_EQ(workload.requests.size(), 3);
  EXPECT_EQ(Tokens(workload, 0).size(), 48);
  EXPECT_EQ(Tokens(workload, 1).size(), 80);
  EXPECT_EQ(Tokens(workload, 2).size(), 112);
  const std::vector<std::uint32_t> second = Tokens(workload, 1);
  const std::vector<std::uint32_t> third = Tokens(workload, 2);
  EXPECT_TRUE(std::equal(second.begin(), second.end(), third.begin()));
  EXPECT_EQ(workload.requests[1].shape.arrival - workload.requests[0].shape.arrival, seconds(10));
}

TEST(SessionWorkload, SessionsShareTheSystemPromptOnly) {
  const Workload workload = MakeSessionWorkload(
      {.system_tokens = 32, .turns = 1, .turn = {.prompt = 16, .output = 16}, .sessions = 2}, 1);

  const std::vector<std::uint32_t> a = Tokens(workload, 0);
  const std::vector<std::uint32_t> b = Tokens(workload, 1);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 32, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 32, a.end(), b.begin() + 32));
}

Trace ThreeRequests() {
  return {.requests = {{.arrival = seconds(0), .prompt_tokens = 10, .output_tokens = 1},
                       {.arrival = seconds(3), .prompt_tokens = 9000, .output_tokens = 1},
                       {.arrival = seconds(4), .prompt_tokens = 20, .output_tokens = 1}}};
}

TEST(TraceWorkload, StretchesTimesToTheRateAndLeavesOutWhatDoesNotFit) {
  const auto workload = MakeTraceWorkload(ThreeRequests(), {.requests_per_second = 2}, 1);

  ASSERT_TRUE(workload.ok());
  ASSERT_EQ(workload->requests.size(), 2);
  EXPECT_EQ(workload->requests[1].shape.prompt_tokens, 20);
  EXPECT_EQ(workload->requests[1].shape.arrival, milliseconds(500));
}

TEST(TraceWorkload, KeepsTimesWithoutARateAndBeginsWhereAsked) {
  const auto workload =
      MakeTraceWorkload(ThreeRequests(), {.first = 1, .most_context_tokens = 10'000}, 1);

  ASSERT_TRUE(workload.ok());
  ASSERT_EQ(workload->requests.size(), 2);
  EXPECT_EQ(workload->requests[0].shape.arrival, seconds(0));
  EXPECT_EQ(workload->requests[1].shape.arrival, seconds(1));
}

TEST(TraceWorkload, NothingThatFitsIsAnError) {
  const auto workload = MakeTraceWorkload(ThreeRequests(), {.most_context_tokens = 5}, 1);

  EXPECT_EQ(workload.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(workload.status().message()), HasSubstr("5 tokens"));
}

TEST(TraceWorkload, OtherArrivalsReplaceItsOwn) {
  const auto workload = MakeTraceWorkload(ThreeRequests(), {}, 1);
  ASSERT_TRUE(workload.ok());

  const Workload even =
      WithArrivals(*workload, {.kind = ArrivalKind::kFixed, .requests_per_second = 10});

  EXPECT_EQ(even.requests[0].shape.arrival, milliseconds(100));
  EXPECT_EQ(even.requests[1].shape.arrival, milliseconds(200));
}

}  // namespace
}  // namespace baton
