// Handoffs that a failpoint makes go wrong in one particular way.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/faults/fault_fixture.h"
#include "tests/support/failpoint_control.h"

namespace baton {
namespace {

constexpr std::int64_t kTinyBlockBytes = 8192;

class HandoffEdgesTest : public FaultTest {
 protected:
  std::string FailpointFolder() const override { return failpoints_.folder(); }
  std::vector<std::string> WorkerFlags() const override { return {"--kv-transport", "tcp"}; }

  // Lines of a server's log that name this event.
  static std::vector<std::string> Logged(ServerProcess& server, const std::string& event) {
    std::vector<std::string> found;
    const std::vector<std::string> lines =
        absl::StrSplit(server.process().ErrorOutput(), '\n', absl::SkipEmpty());
    for (const std::string& line : lines) {
      if (line.find(absl::StrCat(" ", event, " ")) != std::string::npos) {
        found.push_back(line);
      }
    }
    return found;
  }
  // As Logged, from the `count`-th on: what is logged after its effect may still be on its way.
  static std::vector<std::string> AwaitLogged(ServerProcess& server,
                                              const std::string& event,
                                              std::size_t count) {
    EXPECT_TRUE(WaitUntil([&] { return Logged(server, event).size() >= count; }, kPatience))
        << event;
    return Logged(server, event);
  }
  // The number after " name=" in a line of a log; -1 when there is none.
  static std::int64_t NumberIn(const std::string& line, const std::string& name) {
    const std::string key = absl::StrCat(" ", name, "=");
    const std::size_t begin = line.find(key);
    std::int64_t number = -1;
    if (begin != std::string::npos) {
      const std::string rest = line.substr(begin + key.size());
      if (!absl::SimpleAtoi(rest.substr(0, rest.find(' ')), &number)) {
        return -1;
      }
    }
    return number;
  }

  FailpointControl failpoints_;
};

// T19: the decode worker has the first token and no blocks; it waits for them.
TEST_F(HandoffEdgesTest, PiecesThatComeLateAreWaitedFor) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  failpoints_.Arm("prefill.hold_pieces", "fail 0");
  const auto stream = client().Stream(request);
  ASSERT_TRUE(stream->WaitForTokens(1));

  // Nothing but the first token, however long it lasts.
  constexpr std::chrono::milliseconds kLate(200);
  EXPECT_FALSE(stream->WaitForEnd(kLate).has_value());
  EXPECT_EQ(stream->tokens().size(), 1u);
  failpoints_.Disarm("prefill.hold_pieces");

  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  EXPECT_EQ(stream->timeline().path(), v1::PATH_DISAGGREGATED);
  EXPECT_EQ(cluster().decode().Load().prefilled_tokens(), 0u);
  const auto& exposed = stream->timeline().exposed_transfer();
  EXPECT_GE(exposed.seconds() * 1000 + exposed.nanos() / 1'000'000, kLate.count());
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

// What is said of the failure is its cause, not the cancellations that it brings about.
TEST_F(HandoffEdgesTest, PiecesThatNeverComeAreNamed) {
  failpoints_.Arm("prefill.hold_pieces", "fail 0");
  const auto stream = client().Stream(LongRequest(v1::PATH_DISAGGREGATED));
  ASSERT_TRUE(stream->WaitForTokens(1));

  const std::optional<absl::Status> end = stream->WaitForEnd(Promised(kRecoveryBegins));
  failpoints_.Disarm("prefill.hold_pieces");

  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*end) || absl::IsAborted(*end)) << *end;
  EXPECT_NE(end->message().find("the blocks did not arrive in time"), absl::string_view::npos)
      << *end;
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

// The same however pieces move.
class OverTransportTest : public HandoffEdgesTest, public testing::WithParamInterface<std::string> {
 protected:
  std::vector<std::string> WorkerFlags() const override { return {"--kv-transport", GetParam()}; }
};

INSTANTIATE_TEST_SUITE_P(,
                         OverTransportTest,
                         testing::Values("tcp", "mapped", "grpc"),
                         [](const auto& test) { return test.param; });

// F38, B41: as many damaged messages are found as were damaged, and none of them is decoded on.
TEST_P(OverTransportTest, DamagedPiecesAreFetchedAgain) {
  failpoints_.Arm("prefill.damage_piece", "error 1");

  ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);

  EXPECT_TRUE(failpoints_.WasHit("prefill.damage_piece"));
  EXPECT_EQ(Logged(cluster().decode(), "handoff.checksum_mismatch").size(), 1u);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

TEST_P(OverTransportTest, PiecesDamagedEveryTimeAreComputedHere) {
  failpoints_.Arm("prefill.damage_piece", "fail 0");

  ExpectAnswer(v1::PATH_COLOCATED, v1::ROUTE_REASON_PREFILL_FAILED);

  failpoints_.Disarm("prefill.damage_piece");
  const std::vector<std::string> ended = Logged(cluster().decode(), "handoff.failed");
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_NE(ended[0].find("DATA_LOSS"), std::string::npos) << ended[0];
  EXPECT_EQ(NumberIn(ended[0], "landed_blocks"), 0) << ended[0];
  const std::size_t found = Logged(cluster().decode(), "handoff.checksum_mismatch").size();
  EXPECT_GE(found, 2u);
  // F35: the router gives the pair a rest first, and nothing is asked of it meanwhile.
  ExpectAnswer(v1::PATH_COLOCATED, v1::ROUTE_REASON_NO_PREFILL_WORKER);
  EXPECT_EQ(Logged(cluster().decode(), "handoff.requested").size(), 1u);
  EXPECT_EQ(Logged(cluster().decode(), "handoff.checksum_mismatch").size(), found);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
  ExpectSplitSoon();
}

// F1: of a prefill worker that has died the whole blocks that landed are kept, and no more than the
// others is computed.
TEST_P(OverTransportTest, BlocksOfADeadWorkerThatLandedAreKept) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  const auto stream = client().Stream(request);
  ASSERT_TRUE(WaitUntil(
      [&] { return cluster().prefill().Load().prefilled_tokens() >= kLongPromptTokens / 2; },
      kPatience));

  cluster().prefill().process().Kill();

  EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(stream->tokens(), expected);
  const std::vector<std::string> failed = Logged(cluster().decode(), "handoff.failed");
  ASSERT_EQ(failed.size(), 1u);
  const std::int64_t landed = NumberIn(failed[0], "landed_blocks");
  EXPECT_GT(landed, 0) << failed[0];
  EXPECT_TRUE(WaitUntil([&] { return cluster().decode().IsIdle(); }, Promised(kBlocksFree)));
  EXPECT_EQ(cluster().decode().Load().prefilled_tokens(),
            kLongPromptTokens - static_cast<std::uint64_t>(landed) * 16);
}

// B40: 64 prompts at once, each message of their blocks is held up, and none gets another's blocks
// or first token.
TEST_P(OverTransportTest, ManyAtOnceOverASlowTransferKeepApart) {
  constexpr std::size_t kPrompts = 64;
  std::vector<v1::CompleteRequest> requests;
  std::vector<Tokens> expected;
  for (std::size_t i = 0; i < kPrompts; ++i) {
    requests.push_back(
        GreedyRequest(TinyPrompt(1000 + i, 520 + 3 * i), 24, v1::PATH_DISAGGREGATED));
    expected.push_back(Expected(requests.back()));
  }
  // Else a mixture would not be seen.
  EXPECT_EQ(std::set(expected.begin(), expected.end()).size(), kPrompts);
  failpoints_.Arm("prefill.hold_pieces", "slow 0 5");

  std::vector<std::unique_ptr<StreamedCompletion>> streams;
  for (const v1::CompleteRequest& request : requests) {
    streams.push_back(client().Stream(request));
  }

  std::uint64_t most_open = 0;
  for (std::size_t i = 0; i < kPrompts; ++i) {
    SCOPED_TRACE(i);
    while (!streams[i]->WaitForEnd(std::chrono::milliseconds(10)).has_value() && !HasFailure()) {
      most_open = std::max<std::uint64_t>(most_open, cluster().decode().Load().open_handoffs());
    }
    EXPECT_EQ(streams[i]->WaitForEnd(), absl::OkStatus());
    EXPECT_EQ(streams[i]->tokens(), expected[i]);
    EXPECT_EQ(streams[i]->timeline().path(), v1::PATH_DISAGGREGATED);
    EXPECT_EQ(streams[i]->timeline().transport(), GetParam());
  }
  EXPECT_GT(most_open, kPrompts / 4) << "they were not under way at once";
  failpoints_.Disarm("prefill.hold_pieces");
  EXPECT_EQ(cluster().decode().Load().prefilled_tokens(), 0u);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

// T01: the client leaves while the decode worker waits for blocks whose owner has died, or stands
// still, before the first piece or between two of them.
TEST_P(OverTransportTest, AbortedWhileADeadWorkerOwesTheBlocks) {
  for (const int signal : {SIGSTOP, SIGKILL}) {
    for (const char* const pieces : {"fail 0", "slow 0 30"}) {
      SCOPED_TRACE(absl::StrCat("signal ", signal, ", pieces ", pieces));
      failpoints_.Arm("prefill.hold_pieces", pieces);
      const auto stream = client().Stream(LongRequest(v1::PATH_DISAGGREGATED));
      ASSERT_TRUE(stream->WaitForTokens(1));
      ASSERT_FALSE(cluster().decode().IsIdle());

      cluster().prefill().process().Signal(signal);
      stream->Cancel();

      EXPECT_EQ(stream->WaitForEnd()->code(), absl::StatusCode::kCancelled);
      EXPECT_TRUE(WaitUntil([&] { return cluster().decode().IsIdle(); }, Promised(kBlocksFree)));
      failpoints_.Disarm("prefill.hold_pieces");
      if (signal == SIGSTOP) {
        cluster().prefill().process().Signal(SIGCONT);
      } else {
        ASSERT_EQ(cluster().prefill().Start(), absl::OkStatus());
      }
      ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
      EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kLease + kBlocksFree)));
      ExpectSplitSoon();
    }
  }
}

// T32: what the decode worker had of a prefill worker that has died goes within the limit of a
// heartbeat, with nothing open and nobody asking: its pool, which the mapping would keep alive, and
// its connections.
TEST_P(OverTransportTest, NothingOfADeadWorkerIsKept) {
  const auto mappings = [this] {
    std::ifstream maps(absl::StrCat("/proc/", cluster().decode().process().pid(), "/maps"));
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
      count += line.find("baton-kv-pool") != std::string::npos ? 1 : 0;
    }
    return count;
  };
  const int own_mappings = mappings();
  ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);
  ASSERT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
  EXPECT_EQ(mappings(), own_mappings + (GetParam() == "mapped" ? 1 : 0));
  const auto peers = [this] {
    const auto description = cluster().decode().Describe();
    return description.ok() ? description->kv_peers_size() : -1;
  };
  ASSERT_EQ(peers(), 1);
  const std::size_t files = cluster().decode().process().open_files();

  cluster().prefill().process().Kill();

  constexpr std::chrono::milliseconds kDead = std::chrono::seconds(1);
  EXPECT_TRUE(
      WaitUntil([&] { return peers() == 0 && mappings() == own_mappings; }, Promised(kDead)))
      << peers() << " peers, " << mappings() << " mappings, " << own_mappings << " of its own";
  EXPECT_TRUE(WaitUntil([&] { return cluster().decode().process().open_files() < files; },
                        Promised(kDead)));
}

class PartlyCachedTest : public OverTransportTest {
 protected:
  bool PrefixCache() const override { return true; }
};

INSTANTIATE_TEST_SUITE_P(,
                         PartlyCachedTest,
                         testing::Values("tcp", "mapped", "grpc"),
                         [](const auto& test) { return test.param; });

// T16, F41: both sides have the beginning of a prompt already, the decode side less of it than the
// prefill side or more. Only what the decode side lacks moves, nothing is computed that the prefill
// side has, and the tokens are right.
TEST_P(PartlyCachedTest, OnlyBlocksThatTheDecodeSideLacksMove) {
  constexpr std::size_t kPrompt = 1200;
  constexpr std::size_t kKnownThere = 800;
  std::uint64_t seed = 50;
  for (const std::size_t known_here : {std::size_t{16}, std::size_t{320}, std::size_t{1184}}) {
    SCOPED_TRACE(known_here);
    const Tokens prompt = TinyPrompt(seed++, kPrompt);
    const auto beginning = [&](std::size_t tokens, std::uint32_t max_tokens, v1::Path path) {
      const Tokens some(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(tokens));
      return GreedyRequest(some, max_tokens, path);
    };
    std::uint64_t computed_there = cluster().prefill().Load().prefilled_tokens() + kKnownThere;
    const std::uint64_t computed_here = cluster().decode().Load().prefilled_tokens() + known_here;
    // With one token wanted nothing moves.
    ASSERT_TRUE(client().Complete(beginning(kKnownThere, 1, v1::PATH_DISAGGREGATED)).ok());
    ASSERT_TRUE(client().Complete(beginning(known_here, 1, v1::PATH_COLOCATED)).ok());
    const auto computed = [&] {
      return cluster().prefill().Load().prefilled_tokens() == computed_there &&
             cluster().decode().Load().prefilled_tokens() == computed_here;
    };
    ASSERT_TRUE(
        WaitUntil(computed, kPatience));  // what a worker says of itself may be a moment old
    const v1::CompleteRequest request = beginning(kPrompt, 24, v1::PATH_DISAGGREGATED);

    const absl::StatusOr<v1::CompleteResponse> response = client().Complete(request);

    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(TokensOf(*response), Expected(request));
    ASSERT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
    computed_there += kPrompt - kKnownThere;
    EXPECT_TRUE(WaitUntil(computed, kPatience))
        << cluster().prefill().Load().prefilled_tokens() << " of " << computed_there << ", "
        << cluster().decode().Load().prefilled_tokens() << " of " << computed_here;
    const std::vector<std::string> landed = Logged(cluster().decode(), "handoff.landed");
    const std::vector<std::string> sent =
        AwaitLogged(cluster().prefill(), "handoff.ended", landed.size());
    ASSERT_FALSE(sent.empty() || landed.empty());
    EXPECT_EQ(NumberIn(landed.back(), "bytes"),
              static_cast<std::int64_t>((kPrompt - known_here) / 16) * kTinyBlockBytes)
        << landed.back();
    EXPECT_EQ(NumberIn(sent.back(), "bytes"), NumberIn(landed.back(), "bytes")) << sent.back();
  }
}

// T06: the decode worker sleeps past its lease, with pieces on the way or announced, and the
// prefill worker gives the blocks to others. When it wakes it is told, or sees, that they are not
// its own any more: nothing of them is decoded on.
class PastTheLeaseTest : public OverTransportTest {
 protected:
  int DecodeWorkers() const override { return 2; }
};

INSTANTIATE_TEST_SUITE_P(,
                         PastTheLeaseTest,
                         testing::Values("tcp", "mapped", "grpc"),
                         [](const auto& test) { return test.param; });

TEST_P(PastTheLeaseTest, BlocksOfOthersAreNotRead) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  failpoints_.Arm("prefill.hold_pieces", "fail 0");
  const auto stream = client().Stream(request);
  ASSERT_TRUE(stream->WaitForTokens(1));
  ServerProcess& sleeper = cluster().decode(cluster().decode(0).IsIdle() ? 1 : 0);
  ASSERT_FALSE(sleeper.IsIdle());

  sleeper.process().Signal(SIGSTOP);
  failpoints_.Disarm("prefill.hold_pieces");

  const TimePoint stopped = Clock::System().Now();
  EXPECT_TRUE(
      WaitUntil([&] { return cluster().prefill().IsIdle(); }, Promised(kLease + kBlocksFree)));
  ASSERT_GE(Clock::System().Now() - stopped, std::chrono::seconds(1));
  // More than the pool holds: every block has another owner since.
  ASSERT_TRUE(cluster().WaitForUsableWorkers(2));
  for (std::uint64_t seed = 70; seed < 80; ++seed) {
    const v1::CompleteRequest other =
        GreedyRequest(TinyPrompt(seed, request.tokens().ids_size()), 2, v1::PATH_DISAGGREGATED);
    const absl::StatusOr<v1::CompleteResponse> response = client().Complete(other);
    ASSERT_TRUE(response.ok()) << response.status();
  }
  sleeper.process().Signal(SIGCONT);

  const std::optional<absl::Status> end = stream->WaitForEnd();
  ASSERT_TRUE(end.has_value());
  const Tokens tokens = stream->tokens();
  ASSERT_LE(tokens.size(), expected.size());
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin()));
  EXPECT_TRUE(!end->ok() || tokens == expected);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kLease + kBlocksFree)));
  EXPECT_TRUE(Logged(sleeper, "handoff.landed").empty());
}

// T29: the longest prompt that leaves room for two tokens; what is sent is what is used.
TEST_F(HandoffEdgesTest, TheLongestPromptMovesOnce) {
  const v1::CompleteRequest request =
      GreedyRequest(TinyPrompt(9, kTinyContext - 2), 2, v1::PATH_DISAGGREGATED);

  const absl::StatusOr<v1::CompleteResponse> response = client().Complete(request);

  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(TokensOf(*response), Expected(request));
  ASSERT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
  const std::vector<std::string> sent = AwaitLogged(cluster().prefill(), "handoff.ended", 1);
  const std::vector<std::string> landed = Logged(cluster().decode(), "handoff.landed");
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_EQ(landed.size(), 1u);
  EXPECT_EQ(NumberIn(landed[0], "bytes"), kTinyContext / 16 * kTinyBlockBytes) << landed[0];
  EXPECT_EQ(NumberIn(sent[0], "bytes"), NumberIn(landed[0], "bytes")) << sent[0];
}

// T27: requests that wait for their blocks fill the pool, and more of them wait for room; when
// nothing comes, each goes on here all the same, or is told that there is no room.
TEST_F(HandoffEdgesTest, APoolFullOfWaitingHandoffsDrains) {
  constexpr int kRequests = 10;  // seven fill the pool
  failpoints_.Arm("prefill.hold_pieces", "fail 0");
  std::vector<std::unique_ptr<StreamedCompletion>> streams;
  for (int i = 0; i < kRequests; ++i) {
    streams.push_back(client().Stream(LongRequest(v1::PATH_UNSPECIFIED)));
  }
  EXPECT_TRUE(WaitUntil(
      [&] {
        const v1::EngineLoad load = cluster().decode().Load();
        return load.total_blocks() > 0 && load.waiting_sequences() > 0;
      },
      kPatience));
  EXPECT_TRUE(
      WaitUntil([&] { return cluster().decode().Load().prefilled_tokens() > 0; }, kPatience));
  failpoints_.Disarm("prefill.hold_pieces");

  const Tokens expected = Expected(LongRequest(v1::PATH_UNSPECIFIED));
  int right = 0;
  for (const auto& stream : streams) {
    const std::optional<absl::Status> end = stream->WaitForEnd();
    ASSERT_TRUE(end.has_value());
    EXPECT_TRUE(end->ok() || absl::IsResourceExhausted(*end)) << *end;
    if (end->ok()) {
      EXPECT_EQ(stream->tokens(), expected);
      ++right;
    }
  }
  EXPECT_GE(right, 7);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kLease + kBlocksFree)));
}

}  // namespace
}  // namespace baton
