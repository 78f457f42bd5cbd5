// More requests than the fleet takes, at once and one after the other (faults.md F25, F27; T42).

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "proto/status_conversion.h"
#include "tests/faults/fault_fixture.h"

namespace baton {
namespace {

constexpr int kRunning = 4;
constexpr int kQueued = 8;

class OverloadTest : public FaultTest {
 protected:
  std::vector<std::string> WorkerFlags() const override {
    return {"--max-sequences", std::to_string(kRunning)};
  }
  std::vector<std::string> RouterFlags() const override {
    return {"--queue-size", std::to_string(kQueued)};
  }
};

// F25, T42: ten times what runs at once, and that four times over. Whoever is admitted gets the
// right tokens; the others are told at once, and when to come again; then everything is as before.
TEST_F(OverloadTest, WhatIsTooMuchIsRefusedAtOnceAndTheRestIsAnswered) {
  constexpr int kBurst = 10 * kRunning;
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(7, 600), 200, v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  int answered = 0;
  int refused = 0;
  std::vector<double> refusal_ms;
  for (int burst = 0; burst < 4; ++burst) {
    SCOPED_TRACE(burst);
    std::vector<std::unique_ptr<StreamedCompletion>> streams;
    const TimePoint begin = Clock::System().Now();
    for (int i = 0; i < kBurst; ++i) {
      streams.push_back(client().Stream(request));
    }
    const double asking_ms =
        std::chrono::duration<double, std::milli>(Clock::System().Now() - begin).count();
    for (const auto& stream : streams) {
      const std::optional<absl::Status> end = stream->WaitForEnd();
      ASSERT_TRUE(end.has_value());
      if (end->ok()) {
        EXPECT_EQ(stream->tokens(), expected);
        ++answered;
        continue;
      }
      EXPECT_EQ(end->code(), absl::StatusCode::kResourceExhausted) << *end;
      EXPECT_EQ(ReasonOf(*end), "QUEUE_FULL");
      refusal_ms.push_back(
          std::chrono::duration<double, std::milli>(stream->last_event() - begin).count() -
          asking_ms);
      ++refused;
    }
    EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
  }
  EXPECT_GE(answered, 4 * (kRunning + kQueued));
  EXPECT_GE(refused, 4 * (kBurst - kRunning - kQueued) / 2);
  ASSERT_FALSE(refusal_ms.empty());
  std::sort(refusal_ms.begin(), refusal_ms.end());
  std::printf("%d answered, %d refused, the median %.1f ms after the last was sent\n", answered,
              refused, refusal_ms[refusal_ms.size() / 2]);
  EXPECT_LE(refusal_ms[refusal_ms.size() / 2], 50);

  const auto status = cluster().router().Status();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->admission().refused(), static_cast<std::uint64_t>(refused));
  EXPECT_EQ(status->admission().queued(), 0u);
  EXPECT_EQ(status->admission().running(), 0u);
  const auto response = client().Complete(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(TokensOf(*response), expected);
}

class HerdTest : public FaultTest {
 protected:
  bool PrefixCache() const override { return true; }
  int DecodeWorkers() const override { return 2; }
};

// F27: two hundred requests for one prompt at the same time. Each worker computes it at most once;
// the others share what it has, or wait for it.
TEST_F(HerdTest, OnePromptIsComputedOncePerWorker) {
  constexpr int kRequests = 200;
  constexpr std::size_t kPromptTokens = 400;
  const v1::CompleteRequest request =
      GreedyRequest(TinyPrompt(8, kPromptTokens), 4, v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  std::vector<std::unique_ptr<StreamedCompletion>> streams;
  for (int i = 0; i < kRequests; ++i) {
    streams.push_back(client().Stream(request));
  }
  for (const auto& stream : streams) {
    const std::optional<absl::Status> end = stream->WaitForEnd();
    ASSERT_TRUE(end.has_value());
    EXPECT_TRUE(end->ok()) << *end;
    EXPECT_EQ(stream->tokens(), expected);
  }
  std::uint64_t most_requests = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    const v1::EngineLoad load = cluster().decode(i).Load();
    const std::uint64_t requests = load.decoded_tokens() / 4;
    most_requests = std::max(most_requests, requests);
    // The prompt once, and of every further request what is not in a full block, and the last one.
    EXPECT_LE(load.prefilled_tokens(), kPromptTokens + requests * 16) << "decode worker " << i;
  }
  EXPECT_LT(most_requests, kRequests) << "a busy worker is not asked though the other is idle";
  std::printf("the busier decode worker had %llu of %d requests\n",
              static_cast<unsigned long long>(most_requests), kRequests);
}

}  // namespace
}  // namespace baton
