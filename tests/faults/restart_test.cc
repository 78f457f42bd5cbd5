// A worker that is killed and started again at its address, twenty times, prefill and decode worker
// in turn, while clients ask without a pause (faults.md F8; T30, B47, B48, B49): always the right
// tokens or a clear status, and the first request after each restart is split.

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/faults/fault_fixture.h"

namespace baton {
namespace {

class RestartLoopTest : public FaultTest {
 protected:
  static constexpr int kPrompts = 4;

  // Long enough that a good part of the time is the handoff's.
  static v1::CompleteRequest Request(int number) {
    constexpr std::size_t kPromptTokens = 1500;
    constexpr std::uint32_t kNewTokens = 60;
    return GreedyRequest(TinyPrompt(100 + static_cast<std::uint64_t>(number), kPromptTokens),
                         kNewTokens, v1::PATH_UNSPECIFIED);
  }

  // What the clients of this test see.
  struct Tally {
    std::atomic<int> right = 0;
    std::atomic<int> refused = 0;
    std::atomic<int> wrong = 0;
  };

  // Asks until told to stop.
  void Ask(int number, std::atomic<bool>& stop, Tally& tally) {
    const v1::CompleteRequest request = Request(number);
    const CompletionsClient own(cluster().router().address());
    while (!stop) {
      const auto stream = own.Stream(request);
      const std::optional<absl::Status> end = stream->WaitForEnd();
      const Tokens tokens = stream->tokens();
      const Tokens& expected = expected_[static_cast<std::size_t>(number)];
      const bool begins_right = tokens.size() <= expected.size() &&
                                std::equal(tokens.begin(), tokens.end(), expected.begin());
      if (end == absl::OkStatus() && tokens == expected) {
        ++tally.right;
      } else if (end.has_value() && begins_right &&
                 (absl::IsUnavailable(*end) || absl::IsAborted(*end))) {
        ++tally.refused;
        // There is nobody who could answer; the next one comes.
        WaitUntil([&] { return stop || cluster().client().IsServing(); }, kPatience);
      } else {
        ++tally.wrong;
        ADD_FAILURE() << "ended with " << end.value_or(absl::DeadlineExceededError("nothing"))
                      << " after " << tokens.size() << " tokens, right so far: " << begins_right;
      }
    }
  }

  void ComputeExpected() {
    for (int i = 0; i < kPrompts; ++i) {
      expected_.push_back(Expected(Request(i)));
    }
  }

  std::vector<Tokens> expected_;
};

TEST_F(RestartLoopTest, TwentyTimesUnderRequests) {
  constexpr int kRestarts = 20;
  constexpr std::uint64_t kSeed = 29112026;
  ASSERT_NO_FATAL_FAILURE(ComputeExpected());
  std::atomic<bool> stop = false;
  Tally tally;
  std::vector<std::jthread> clients;
  for (int i = 0; i < kPrompts; ++i) {
    clients.emplace_back([&, i] { Ask(i, stop, tally); });
  }
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < kRestarts && !HasFatalFailure(); ++round) {
    ServerProcess& victim = round % 2 == 0 ? cluster().prefill() : cluster().decode();
    const int more = static_cast<int>(random() % 5);
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", round ", round));
    const int before = tally.right;
    EXPECT_TRUE(WaitUntil([&] { return tally.right >= before + more; }, kPatience));

    victim.process().Kill();

    EXPECT_EQ(victim.Start(), absl::OkStatus());
    EXPECT_TRUE(cluster().WaitForUsableWorkers(2));
    ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);
  }
  stop = true;
  clients.clear();  // joins
  std::printf("%d requests answered, %d refused with a status, %d wrong\n", tally.right.load(),
              tally.refused.load(), tally.wrong.load());
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kLease + kBlocksFree)));
}

// B48: nobody waits for anybody: whole fleets are killed while others still start, and half-started
// ones again.
class RestartStormTest : public RestartLoopTest {
 protected:
  int DecodeWorkers() const override { return 2; }
  int PrefillWorkers() const override { return 2; }
};

TEST_F(RestartStormTest, FiftyTimesWithoutWaiting) {
  constexpr int kKills = 50;
  constexpr std::uint64_t kSeed = 30112026;
  ASSERT_NO_FATAL_FAILURE(ComputeExpected());
  std::atomic<bool> stop = false;
  Tally tally;
  std::vector<std::jthread> clients;
  for (int i = 0; i < kPrompts; ++i) {
    clients.emplace_back([&, i] { Ask(i, stop, tally); });
  }
  ServerProcess* const workers[] = {&cluster().prefill(0), &cluster().prefill(1),
                                    &cluster().decode(0), &cluster().decode(1)};
  std::mt19937_64 random(kSeed);
  for (int kill = 0; kill < kKills; ++kill) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", kill ", kill));
    ServerProcess& victim = *workers[random() % std::size(workers)];
    // Often before it is ready; the one that was there is killed first.
    ASSERT_EQ(victim.Launch(), absl::OkStatus());
    const int before = tally.right + tally.refused;
    WaitUntil([&] { return tally.right + tally.refused > before; },
              std::chrono::milliseconds(random() % 200));
  }
  for (ServerProcess* worker : workers) {
    ASSERT_EQ(worker->Start(), absl::OkStatus());
  }
  ASSERT_TRUE(cluster().WaitForUsableWorkers(4));
  EXPECT_TRUE(
      WaitUntil([&, before = tally.right.load()] { return tally.right > before + 20; }, kPatience));
  stop = true;
  clients.clear();  // joins
  std::printf("%d requests answered, %d refused with a status, %d wrong\n", tally.right.load(),
              tally.refused.load(), tally.wrong.load());
  EXPECT_GT(tally.refused, 0) << "the storm was none";
  ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kLease + kBlocksFree)));
}

}  // namespace
}  // namespace baton
