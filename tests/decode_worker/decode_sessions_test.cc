#include "decode_worker/decode_sessions.h"

#include <atomic>

#include "proto/status_conversion.h"
#include "tests/decode_worker/two_sided_sessions.h"

namespace baton {
namespace {

TEST_F(DecodeSessionsTest, ASplitRequestGivesTheTokensOfAColocatedOne) {
  for (const int length : {1, 15, 16, 17, 255, 256, 257, 600}) {
    const std::uint64_t seed = static_cast<std::uint64_t>(length);
    DecodeJob job = MakeJob(length, 24, seed);
    const std::vector<std::uint32_t> expected = Colocated(job);
    job.prefill = {prefill_.candidate()};
    const std::uint64_t prefilled = decode_.core->engine().load().prefilled_tokens;

    const auto observer = decode_.Start(std::move(job));

    EXPECT_TRUE(observer->WaitForEnd().ok());
    EXPECT_EQ(observer->tokens(), expected) << length;
    const v1::GenerateEvent::Finished finished = observer->result().finished;
    EXPECT_TRUE(finished.split());
    EXPECT_FALSE(finished.prefill_failed());
    EXPECT_EQ(finished.transport(), "inproc");
    EXPECT_EQ(finished.prefill_worker(), prefill_.served.address());
    EXPECT_GT(FromProtoDuration(finished.prefill()).count(), 0);
    // T22: not one token of the prompt is computed twice.
    EXPECT_EQ(decode_.core->engine().load().prefilled_tokens, prefilled);
  }
  ExpectAllFree();
}

// T16, B45, on the split path: the decode side has the first blocks already, the prefill side
// others.
TEST_F(DecodeSessionsTest, ASplitRequestFetchesWhatTheDecodeSideLacks) {
  const EngineOptions cached{.kv_pool_bytes = kTestPoolBytes};
  for (const int known : {15, 16, 100, 303, 304, 600}) {
    SCOPED_TRACE(known);
    PrefillNode prefill(model_.file(), inproc::MakeTransport(hub_), cached);
    DecodeNode decode(model_.file(), inproc::MakeTransport(hub_), {}, cached);
    DecodeJob job = MakeJob(304, 24);
    const std::vector<std::uint32_t> expected = Colocated(job);
    DecodeJob before = MakeJob(known, 1);
    EXPECT_TRUE(decode.Start(std::move(before))->WaitForEnd().ok());
    job.prefill = {prefill.candidate()};
    job.forced = true;
    job.colocate_below_tokens = 512;
    for (int round = 0; round < 2; ++round) {
      const auto observer = decode.Start(job);
      EXPECT_TRUE(observer->WaitForEnd().ok());
      EXPECT_EQ(observer->tokens(), expected) << "round " << round;
      EXPECT_TRUE(observer->result().finished.split());
      EXPECT_EQ(observer->result().finished.transport(), "inproc");
      // What the prefill side did not compute, whatever the decode side had.
      EXPECT_EQ(observer->result().finished.cached_prompt_tokens(), round == 0 ? 0u : 303u);
    }
    EXPECT_TRUE(AllBlocksFree(*decode.core));
    EXPECT_TRUE(AllBlocksFree(*prefill.core));
  }
}

// T26: 600 tokens of which 100 are not here stay whole, and the answer says why.
TEST_F(DecodeSessionsTest, APromptThatIsMostlyCachedIsNotSplit) {
  DecodeNode decode(model_.file(), inproc::MakeTransport(hub_), {},
                    EngineOptions{.kv_pool_bytes = kTestPoolBytes});
  DecodeJob job = MakeJob(600, 24);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {prefill_.candidate()};
  job.colocate_below_tokens = 101;
  EXPECT_TRUE(decode.Start(MakeJob(499, 1))->WaitForEnd().ok());  // 496 of them in whole blocks
  const auto split = decode.Start(job);
  EXPECT_TRUE(split->WaitForEnd().ok());
  EXPECT_TRUE(split->result().finished.split()) << "104 tokens are missing";
  EXPECT_FALSE(split->result().finished.prefix_cached());

  const auto whole = decode.Start(job);
  EXPECT_TRUE(whole->WaitForEnd().ok());
  EXPECT_EQ(whole->tokens(), expected);
  EXPECT_FALSE(whole->result().finished.split());
  EXPECT_TRUE(whole->result().finished.prefix_cached());
  EXPECT_FALSE(whole->result().finished.prefill_failed());
  EXPECT_EQ(whole->result().finished.cached_prompt_tokens(), 592u);
  EXPECT_TRUE(AllBlocksFree(*decode.core));
  ExpectAllFree();
}

// B40: no request gets another one's first token or blocks.
TEST_F(DecodeSessionsTest, ManyRequestsAtOnceKeepApart) {
  constexpr std::uint64_t kRequests = 48;
  std::vector<std::vector<std::uint32_t>> expected;
  std::vector<std::shared_ptr<RecordingObserver>> observers;
  for (std::uint64_t seed = 0; seed < kRequests; ++seed) {
    expected.push_back(Colocated(MakeJob(1 + static_cast<int>(seed * 13 % 90), 12, seed)));
  }
  for (std::uint64_t seed = 0; seed < kRequests; ++seed) {
    DecodeJob job = MakeJob(1 + static_cast<int>(seed * 13 % 90), 12, seed);
    job.prefill = {prefill_.candidate()};
    observers.push_back(decode_.Start(std::move(job)));
  }
  for (std::uint64_t seed = 0; seed < kRequests; ++seed) {
    EXPECT_TRUE(observers[seed]->WaitForEnd().ok());
    EXPECT_EQ(observers[seed]->tokens(), expected[seed]) << seed;
  }
  ExpectAllFree();
}

// T18, B42: with one token wanted no KV moves.
TEST_F(DecodeSessionsTest, OneTokenMovesNoBlocks) {
  DecodeJob job = MakeJob(300, 1, 4);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {prefill_.candidate()};
  const auto observer = decode_.Start(std::move(job));
  EXPECT_TRUE(observer->WaitForEnd().ok());
  EXPECT_EQ(observer->tokens(), expected);
  EXPECT_EQ(observer->result().finished.finish_reason(), v1::FINISH_REASON_LENGTH);
  ExpectAllFree();
  EXPECT_EQ(decode_.core->transfer().stats().bytes_received, 0u);
}

TEST_F(DecodeSessionsTest, AFirstTokenThatStopsEndsEverything) {
  DecodeJob job = MakeJob(300, 20, 4);
  job.sequence.add_stop_token_ids(Colocated(job)[0]);
  job.prefill = {prefill_.candidate()};
  const auto observer = decode_.Start(std::move(job));
  EXPECT_TRUE(observer->WaitForEnd().ok());
  EXPECT_EQ(observer->tokens().size(), 1u);
  EXPECT_EQ(observer->result().finished.finish_reason(), v1::FINISH_REASON_STOP);
  ExpectAllFree();
}

// T02: what the decode side has no room for is refused before anybody computes anything for it.
TEST_F(DecodeSessionsTest, APromptTooLargeForThePoolNeverReachesAPrefillWorker) {
  std::atomic<int> calls = 0;
  ScriptedPrefill counting([&calls](auto&, auto&, auto&) {
    ++calls;
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "counted");
  });
  constexpr std::size_t kSmallPool = 128 << 10;
  DecodeNode small(model_.file(), inproc::MakeTransport(hub_), {}, NodeEngine(kSmallPool));
  DecodeJob job = MakeJob(600, 10, 14);
  job.prefill = {counting.candidate(), prefill_.candidate()};
  EXPECT_EQ(small.Start(std::move(job))->WaitForEnd().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(calls.load(), 0);
  EXPECT_EQ(prefill_.core->engine().load().prefilled_tokens, 0u);
  EXPECT_TRUE(AllBlocksFree(*small.core));
}

// T45: handed-over sequences outgrow the pool. The newest one loses its blocks, waits until others
// have ended, is taken again and finishes; nobody stays behind.
TEST_F(DecodeSessionsTest, ARetractedSequenceIsTakenAgainWhenThereIsRoom) {
  constexpr int kSequences = 4;
  constexpr int kPrompt = 100;
  constexpr int kOutput = 150;  // 7 blocks of prompt, 16 in the end
  const std::size_t block = decode_.core->engine().identity().kv.block_bytes();
  DecodeNode small(model_.file(), inproc::MakeTransport(hub_), {}, NodeEngine(32 * block));
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    const std::uint64_t before = small.core->engine().load().prefilled_tokens;
    std::vector<std::vector<std::uint32_t>> expected;
    std::vector<DecodeJob> jobs;
    for (int i = 0; i < kSequences; ++i) {
      jobs.push_back(MakeJob(kPrompt, kOutput, static_cast<std::uint64_t>(10 * round + i)));
      expected.push_back(Colocated(jobs.back()));
    }
    std::vector<std::shared_ptr<RecordingObserver>> observers;
    for (DecodeJob& job : jobs) {
      job.prefill = {prefill_.candidate()};
      observers.push_back(small.Start(std::move(job)));
    }
    for (std::size_t i = 0; i < kSequences; ++i) {
      EXPECT_EQ(observers[i]->WaitForEnd(), absl::OkStatus()) << i;
      EXPECT_EQ(observers[i]->tokens(), expected[i]) << i;
      EXPECT_TRUE(observers[i]->result().finished.split()) << i;
    }
    EXPECT_GT(small.core->engine().load().prefilled_tokens, before + kPrompt)
        << "four of them had room together: nobody was retracted";
    EXPECT_TRUE(AllBlocksFree(*small.core));
  }
  ExpectAllFree();
}

TEST_F(DecodeSessionsTest, ADrainingWorkerTakesNothingNewAndFinishesTheRest) {
  const auto running = decode_.Start(MakeJob(50, 100, 12));
  decode_.sessions.StopIntake();
  EXPECT_EQ(decode_.Start(MakeJob(5, 5))->WaitForEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(running->WaitForEnd().ok());
  EXPECT_EQ(running->tokens().size(), 100u);
  EXPECT_TRUE(decode_.core->Describe().draining());
}

TEST_F(DecodeSessionsTest, ADecodeWorkerByItselfRefusesAForcedSplit) {
  LocalGenerator generator(decode_.sessions);
  auto observer = std::make_shared<RecordingObserver>();
  DecodeJob job = MakeJob(5, 5);
  generator.Start({.request_id = "r", .sequence = job.sequence, .path = v1::PATH_DISAGGREGATED},
                  observer);
  EXPECT_EQ(observer->WaitForEnd().code(), absl::StatusCode::kUnavailable);

  auto colocated = std::make_shared<RecordingObserver>();
  generator.Start({.request_id = "r", .sequence = job.sequence, .path = v1::PATH_COLOCATED},
                  colocated);
  EXPECT_TRUE(colocated->WaitForEnd().ok());
  EXPECT_EQ(colocated->result().reason, v1::ROUTE_REASON_REQUESTED);
}

}  // namespace
}  // namespace baton
