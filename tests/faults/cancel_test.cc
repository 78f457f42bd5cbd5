// Clients that leave: by cancelling, by deadline, by abort, by dying. Blocks are free in both
// workers within a second.

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/faults/fault_fixture.h"

namespace baton {
namespace {

enum class Moment {
  kAtOnce,           // S1 to S3: the call has just left
  kPrefillUnderWay,  // S4
  kPrefillHalfDone,  // S4
  kFirstToken,       // S5 to S8
  kStreaming,        // S8
};

std::string NameOf(Moment moment) {
  switch (moment) {
    case Moment::kAtOnce:
      return "AtOnce";
    case Moment::kPrefillUnderWay:
      return "PrefillUnderWay";
    case Moment::kPrefillHalfDone:
      return "PrefillHalfDone";
    case Moment::kFirstToken:
      return "FirstToken";
    case Moment::kStreaming:
      return "Streaming";
  }
  return "";
}

class CancelTest : public FaultTest {
 protected:
  const ServerProcess& PrefillingWorker(v1::Path path) {
    return path == v1::PATH_DISAGGREGATED ? cluster().prefill() : cluster().decode();
  }

  void Await(Moment moment, v1::Path path, StreamedCompletion& stream) {
    constexpr std::size_t kSome = 10;
    switch (moment) {
      case Moment::kAtOnce:
        break;
      case Moment::kPrefillUnderWay:
        ASSERT_TRUE(WaitForPrefillAt(PrefillingWorker(path)));
        break;
      case Moment::kPrefillHalfDone:
        ASSERT_TRUE(WaitUntil(
            [&] {
              return PrefillingWorker(path).Load().prefilled_tokens() >= kLongPromptTokens / 2;
            },
            kPatience));
        break;
      case Moment::kFirstToken:
        ASSERT_TRUE(stream.WaitForTokens(1));
        break;
      case Moment::kStreaming:
        ASSERT_TRUE(stream.WaitForTokens(kSome));
        break;
    }
  }

  // Of the three servers together.
  std::size_t OpenFiles() {
    return cluster().router().process().open_files() + cluster().decode().process().open_files() +
           cluster().prefill().process().open_files();
  }

  void ExpectFreedSoon() { EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree))); }
};

std::string NameOfCase(const testing::TestParamInfo<std::tuple<v1::Path, Moment>>& info) {
  const auto [path, moment] = info.param;
  return absl::StrCat(path == v1::PATH_COLOCATED ? "Colocated" : "Split", NameOf(moment));
}

class CancelAtMomentTest : public CancelTest,
                           public testing::WithParamInterface<std::tuple<v1::Path, Moment>> {};

INSTANTIATE_TEST_SUITE_P(,
                         CancelAtMomentTest,
                         testing::Combine(testing::Values(v1::PATH_COLOCATED,
                                                          v1::PATH_DISAGGREGATED),
                                          testing::Values(Moment::kAtOnce,
                                                          Moment::kPrefillUnderWay,
                                                          Moment::kPrefillHalfDone,
                                                          Moment::kFirstToken,
                                                          Moment::kStreaming)),
                         NameOfCase);

// F21, B34, B37, T46, T12.
TEST_P(CancelAtMomentTest, FreesAllBlocks) {
  constexpr std::uint32_t kMoreThanIsSeen = 3000;
  const auto [path, moment] = GetParam();
  const auto stream = client().Stream(LongRequest(path, kMoreThanIsSeen));
  Await(moment, path, *stream);
  ASSERT_FALSE(HasFailure());

  stream->Cancel();

  EXPECT_EQ(stream->WaitForEnd()->code(), absl::StatusCode::kCancelled);
  ExpectFreedSoon();
  // Nobody goes on with what nobody waits for.
  const std::uint64_t computed = PrefillingWorker(path).Load().prefilled_tokens();
  if (moment == Moment::kPrefillUnderWay) {
    EXPECT_LT(computed, kLongPromptTokens);
  }
}

// F23: the deadline comes in the middle of the prefill.
TEST_F(CancelTest, DeadlineInTheMiddleOfThePrefill) {
  for (const v1::Path path : {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED}) {
    SCOPED_TRACE(v1::Path_Name(path));
    const TimePoint begin = Clock::System().Now();
    constexpr std::chrono::milliseconds kTimeout(120);
    const auto stream = client().Stream(LongRequest(path), kTimeout);

    EXPECT_EQ(stream->WaitForEnd()->code(), absl::StatusCode::kDeadlineExceeded);

    EXPECT_LT(Clock::System().Now() - begin, kTimeout + Promised(kBlocksFree));
    ExpectFreedSoon();
  }
}

// F24, F23: what is late already starts nothing.
TEST_F(CancelTest, DeadlineAlreadyPast) {
  for (const Duration timeout :
       {Duration(0), Duration(-std::chrono::seconds(5)), Duration(std::chrono::microseconds(1))}) {
    const auto response = client().Complete(LongRequest(v1::PATH_UNSPECIFIED), timeout);
    EXPECT_EQ(response.status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  ExpectFreedSoon();
  EXPECT_EQ(cluster().prefill().Load().prefilled_tokens(), 0u);
  EXPECT_EQ(cluster().decode().Load().prefilled_tokens(), 0u);
}

TEST_F(CancelTest, AbortByRequestId) {
  v1::CompleteRequest request = LongRequest(v1::PATH_DISAGGREGATED);
  request.set_request_id("to-be-aborted");
  const auto stream = client().Stream(request);
  ASSERT_TRUE(WaitForHandoff());

  EXPECT_EQ(client().Abort("no-such-request"), absl::OkStatus());
  EXPECT_EQ(client().Abort("to-be-aborted"), absl::OkStatus());

  EXPECT_EQ(stream->WaitForEnd()->code(), absl::StatusCode::kCancelled);
  ExpectFreedSoon();
}

// F22, B33: the client's process is killed while its call waits for an answer.
TEST_F(CancelTest, TheClientProgramIsKilled) {
  for (const char* path : {"colocated", "disaggregated"}) {
    SCOPED_TRACE(path);
    const auto client_program =
        ChildProcess::Start(ProgramPath("baton"),
                            {"complete", VariedText(1, 12'000), "--server",
                             cluster().router().address(), "--max-tokens", "100", "--path", path});
    ASSERT_TRUE(client_program.ok()) << client_program.status();
    const v1::Path taken =
        path == std::string("colocated") ? v1::PATH_COLOCATED : v1::PATH_DISAGGREGATED;
    ASSERT_TRUE(WaitForPrefillAt(PrefillingWorker(taken))) << (*client_program)->ErrorOutput();

    (*client_program)->Kill();

    ExpectFreedSoon();
  }
}

// T07, T10, T12, B36: hundreds that leave at any moment, far more than the pool could hold, and
// then silence.
TEST_F(CancelTest, ManyAtRandomMoments) {
  constexpr int kRounds = 30;
  constexpr std::size_t kAtOnce = 8;
  constexpr std::uint64_t kSeed = 7;
  ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);  // everybody is connected
  const std::size_t files_before = OpenFiles();
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::unique_ptr<StreamedCompletion>> streams;
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      const v1::Path path = i % 4 == 0 ? v1::PATH_COLOCATED : v1::PATH_DISAGGREGATED;
      streams.push_back(client().Stream(GreedyRequest(TinyPrompt(random(), 700), 100, path)));
    }
    for (const auto& stream : streams) {
      stream->WaitForEnd(std::chrono::microseconds(random() % 15'000));
      stream->Cancel();
    }
    for (const auto& stream : streams) {
      const absl::Status end = *stream->WaitForEnd();
      EXPECT_TRUE(end.ok() || absl::IsCancelled(end))
          << "seed " << kSeed << ", round " << round << ": " << end;
    }
  }
  ExpectFreedSoon();
  EXPECT_TRUE(WaitUntil([&] { return OpenFiles() <= files_before; }, kPatience))
      << OpenFiles() << " open files, " << files_before << " before";
  ExpectAnswer(v1::PATH_DISAGGREGATED, v1::ROUTE_REASON_PREFILL_QUICKER);
}

class CancelOnExampleModelTest : public CancelTest {
 protected:
  bool OnExampleModel() const override { return true; }
};

// "Must show": a client that cancels before the first token.
TEST_F(CancelOnExampleModelTest, BeforeTheFirstToken) {
  for (const v1::Path path : {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED}) {
    SCOPED_TRACE(v1::Path_Name(path));
    const auto stream = client().Stream(LongRequest(path));
    ASSERT_TRUE(WaitForPrefillAt(PrefillingWorker(path)));

    stream->Cancel();

    ExpectFreedSoon();
    EXPECT_EQ(stream->tokens(), Tokens{});
  }
}

}  // namespace
}  // namespace baton
