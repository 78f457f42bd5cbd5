#include "decode_worker/decode_sessions.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "absl/synchronization/notification.h"
#include "common/failpoint.h"
#include "proto/status_conversion.h"
#include "tests/support/scripted_prefill.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/two_workers.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

void WaitUntilCancelled(const grpc::ServerContext& context) {
  EXPECT_TRUE(WaitUntil([&context] { return context.IsCancelled(); }));
}

class DecodeSessionsTest : public testing::Test {
 protected:
  std::vector<std::uint32_t> Colocated(DecodeJob job) {
    job.prefill.clear();
    const auto observer = decode_.Start(std::move(job));
    EXPECT_TRUE(observer->WaitForEnd().ok());
    return observer->tokens();
  }

  // Passes a call on to the real prefill worker; `each` gets what it says.
  grpc::Status Relay(const v1::PrefillRequest& request,
                     const std::function<void(v1::PrefillEvent&)>& each) {
    const auto stub = v1::PrefillWorker::NewStub(
        grpc::CreateChannel(prefill_.served.address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    const auto reader = stub->Prefill(&context, request);
    v1::PrefillEvent event;
    while (reader->Read(&event)) {
      each(event);
    }
    return reader->Finish();
  }

  void ExpectAllFree() {
    EXPECT_TRUE(AllBlocksFree(*decode_.core));
    EXPECT_TRUE(AllBlocksFree(*prefill_.core));
    // A session goes right after its observer has heard the end, on another thread than ours.
    EXPECT_TRUE(WaitUntil([this] { return decode_.sessions.InFlight() == 0; }));
    EXPECT_TRUE(WaitUntil([this] { return prefill_.service.InFlight() == 0; }));
  }

  const TinyCheckpoint model_;
  const std::shared_ptr<inproc::Hub> hub_ = inproc::MakeHub();
  PrefillNode prefill_{model_.file(), inproc::MakeTransport(hub_)};
  DecodeNode decode_{model_.file(), inproc::MakeTransport(hub_), {.accept = milliseconds(400)}};
};

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

TEST_F(DecodeSessionsTest, TheNextCandidateTakesOverFromOneThatRefuses) {
  ScriptedPrefill refusing([](auto&, auto&, auto&) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "another model");
  });
  DecodeJob job = MakeJob(200, 10, 5);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {refusing.candidate(), prefill_.candidate()};
  const auto observer = decode_.Start(std::move(job));
  EXPECT_TRUE(observer->WaitForEnd().ok());
  EXPECT_EQ(observer->tokens(), expected);
  EXPECT_EQ(observer->result().finished.prefill_worker(), prefill_.served.address());
  ExpectAllFree();
}

TEST_F(DecodeSessionsTest, WithNoCandidateLeftThePromptIsComputedHere) {
  v1::PrefillCandidate nobody;
  nobody.set_address("127.0.0.1:1");
  DecodeJob job = MakeJob(200, 10, 6);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {nobody};
  const auto observer = decode_.Start(job);
  EXPECT_TRUE(observer->WaitForEnd().ok());
  EXPECT_EQ(observer->tokens(), expected);
  EXPECT_FALSE(observer->result().finished.split());
  EXPECT_TRUE(observer->result().finished.prefill_failed());

  job.forced = true;
  const auto forced = decode_.Start(job);
  EXPECT_EQ(forced->WaitForEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(forced->tokens().empty());
  ExpectAllFree();
}

// A worker that takes the call and says nothing, or goes silent between any two of its messages.
TEST_F(DecodeSessionsTest, ASilentPrefillWorkerIsGivenUpInTime) {
  ScriptedPrefill silent([](grpc::ServerContext& context, auto&, auto&) {
    WaitUntilCancelled(context);
    return grpc::Status::CANCELLED;
  });
  ScriptedPrefill accepting([this](grpc::ServerContext& context, auto&, auto& writer) {
    v1::PrefillEvent event;
    event.mutable_accepted()->set_instance_id(std::string(prefill_.core->instance().AsBytes()));
    event.mutable_accepted()->set_kv_address("inproc:999");  // nobody there
    writer.Write(event);
    WaitUntilCancelled(context);
    return grpc::Status::CANCELLED;
  });
  DecodeJob job = MakeJob(200, 10, 7);
  const std::vector<std::uint32_t> expected = Colocated(job);
  for (const v1::PrefillCandidate& candidate : {silent.candidate(), accepting.candidate()}) {
    job.prefill = {candidate};
    const TimePoint begin = Clock::System().Now();
    const auto observer = decode_.Start(job);
    EXPECT_TRUE(observer->WaitForEnd().ok());
    EXPECT_EQ(observer->tokens(), expected);
    EXPECT_TRUE(observer->result().finished.prefill_failed());
    EXPECT_LT(Clock::System().Now() - begin, std::chrono::seconds(10));
  }
  ExpectAllFree();
}

TEST_F(DecodeSessionsTest, AWorkerThatEndsWithoutAFirstTokenIsAFailure) {
  ScriptedPrefill ending([](auto&, auto&, auto& writer) {
    v1::PrefillEvent event;
    event.mutable_accepted()->set_instance_id(std::string(16, 'x'));
    event.mutable_accepted()->set_kv_address("inproc:999");
    writer.Write(event);
    return grpc::Status::OK;
  });
  ScriptedPrefill nonsense([](auto&, auto&, auto& writer) {
    v1::PrefillEvent event;
    event.mutable_accepted()->set_instance_id("short");
    writer.Write(event);
    return grpc::Status::OK;
  });
  DecodeJob job = MakeJob(100, 10, 8);
  const std::vector<std::uint32_t> expected = Colocated(job);
  for (const v1::PrefillCandidate& candidate : {ending.candidate(), nonsense.candidate()}) {
    job.prefill = {candidate};
    const auto observer = decode_.Start(job);
    EXPECT_TRUE(observer->WaitForEnd().ok());
    EXPECT_EQ(observer->tokens(), expected);
  }
  ExpectAllFree();
}

// T14: everything that one side tells the other about a handoff, changed on its way. The client
// gets the right tokens or an error, of which the first token may be ahead; who shares the engine's
// steps notices nothing.
TEST_F(DecodeSessionsTest, AWrongDescriptorNeverGivesWrongTokens) {
  using Request = v1::PrefillRequest&;
  using Accepted = v1::PrefillEvent::Accepted&;
  using First = v1::PrefillEvent::FirstToken&;
  // By what the client of a forced split gets.
  enum class End { kFails, kIsRight, kEither };
  struct Damage {
    const char* what;
    End end = End::kFails;
    std::function<void(Request)> request;
    std::function<void(Accepted)> accepted;
    std::function<void(First)> first;
    bool token_ahead = false;
  };
  constexpr std::uint32_t kVocabulary = 512;
  const PrefillNode stranger(model_.file(), inproc::MakeTransport(hub_));
  std::string last_handoff(16, 'x');
  const auto request = [](const char* what, std::function<void(Request)> change) {
    return Damage{.what = what, .request = std::move(change)};
  };
  const auto accepted = [](const char* what, std::function<void(Accepted)> change) {
    return Damage{.what = what, .accepted = std::move(change)};
  };
  // What is wrong with the token is no reason not to use the blocks, if they are all there by then.
  const auto first = [](const char* what, std::function<void(First)> change,
                        End end = End::kEither) {
    return Damage{.what = what, .end = end, .first = std::move(change)};
  };
  const Damage damages[] = {
      request("handoff: unknown", [](Request r) { r.set_handoff_id(std::string(16, 'y')); }),
      request("handoff: the one before", [&](Request r) { r.set_handoff_id(last_handoff); }),
      request("handoff: cut", [](Request r) { r.set_handoff_id("short"); }),
      request("handoff: absent", [](Request r) { r.clear_handoff_id(); }),
      request("epoch: older", [](Request r) { r.set_epoch(r.epoch() - 1); }),
      request("epoch: newer", [](Request r) { r.set_epoch(r.epoch() + 1); }),
      request("decode instance: another",
              [](Request r) { r.set_decode_instance_id(std::string(16, 'y')); }),
      request("decode instance: absent", [](Request r) { r.clear_decode_instance_id(); }),
      request("expected instance: another",
              [](Request r) { r.set_expected_instance_id(std::string(16, 'y')); }),
      request("identity: layers", [](Request r) { r.mutable_identity()->set_layers(9); }),
      request("identity: absent", [](Request r) { r.clear_identity(); }),
      request("prompt: none", [](Request r) { r.mutable_sequence()->clear_prompt(); }),
      request("prompt: out of range",
              [](Request r) { r.mutable_sequence()->set_prompt(0, kVocabulary); }),
      request("first token only", [](Request r) { r.set_first_token_only(true); }),
      accepted("instance: another", [](Accepted a) { a.set_instance_id(std::string(16, 'y')); }),
      accepted("instance: cut", [](Accepted a) { a.set_instance_id("short"); }),
      accepted("address: nobody's", [](Accepted a) { a.set_kv_address("inproc:999"); }),
      accepted("address: absent", [](Accepted a) { a.clear_kv_address(); }),
      accepted("address: no address", [](Accepted a) { a.set_kv_address(std::string(300, ':')); }),
      accepted("address: another worker's",
               [&](Accepted a) { a.set_kv_address(stranger.core->transfer().address()); }),
      first("token: the first that is none", [](First f) { f.set_token(kVocabulary); }),
      first("token: a sign bit", [](First f) { f.set_token(0x80000000); }),
      first("token: the last number", [](First f) { f.set_token(0xffffffff); }),
      first("log probability: unasked", [](First f) { f.mutable_logprob()->set_id(1); }),
      first("log probabilities: unasked",
            [](First f) { f.mutable_prompt_logprobs()->add_tokens(); }),
      first(
          "cached: too many", [](First f) { f.set_cached_tokens(0xffffffff); }, End::kIsRight),
      first(
          "times: negative", [](First f) { f.mutable_prefill()->set_seconds(-5); }, End::kIsRight),
      first(
          "times: absurd",
          [](First f) {
            f.mutable_prefill()->set_seconds(315'576'000'000);
            f.mutable_queue()->set_seconds(315'576'000'000);
          },
          End::kIsRight),
      {.what = "the token ahead of the rest", .token_ahead = true},
  };
  const auto stub = v1::PrefillWorker::NewStub(
      grpc::CreateChannel(prefill_.served.address(), grpc::InsecureChannelCredentials()));
  const Damage* damage = nullptr;
  ScriptedPrefill relay(
      [&](grpc::ServerContext& outer, const v1::PrefillRequest& asked, auto& writer) {
        v1::PrefillRequest passed_on = asked;
        if (damage->request != nullptr) {
          damage->request(passed_on);
        }
        const auto context = grpc::ClientContext::FromServerContext(outer);
        const auto reader = stub->Prefill(context.get(), passed_on);
        std::vector<v1::PrefillEvent> held;
        v1::PrefillEvent event;
        while (reader->Read(&event)) {
          if (event.has_accepted() && damage->accepted != nullptr) {
            damage->accepted(*event.mutable_accepted());
          }
          if (event.has_first_token() && damage->first != nullptr) {
            damage->first(*event.mutable_first_token());
          }
          if (event.has_accepted() && damage->token_ahead) {
            held.push_back(event);
            continue;
          }
          writer.Write(event);
          for (const v1::PrefillEvent& late : std::exchange(held, {})) {
            writer.Write(late);
          }
        }
        last_handoff = asked.handoff_id();
        return reader->Finish();
      });
  DecodeJob job = MakeJob(300, 12, 4);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {relay.candidate()};
  const DecodeJob neighbour = MakeJob(30, 400, 6);
  const std::vector<std::uint32_t> neighbours_tokens = Colocated(neighbour);
  for (const Damage& one : damages) {
    SCOPED_TRACE(one.what);
    damage = &one;
    const auto beside = decode_.Start(neighbour);
    ASSERT_TRUE(beside->WaitForTokens(1));

    job.forced = true;
    const auto forced = decode_.Start(job);
    const absl::Status end = forced->WaitForEnd();
    job.forced = false;
    const auto free_choice = decode_.Start(job);

    EXPECT_TRUE(one.end == End::kEither || end.ok() == (one.end == End::kIsRight)) << end;
    if (end.ok()) {
      EXPECT_EQ(forced->tokens(), expected);
    } else {
      EXPECT_NE(end.code(), absl::StatusCode::kInternal) << end;
      EXPECT_LE(forced->tokens().size(), 1u);
      EXPECT_TRUE(forced->tokens().empty() || forced->tokens()[0] == expected[0]);
    }
    EXPECT_EQ(free_choice->WaitForEnd(), absl::OkStatus());
    EXPECT_EQ(free_choice->tokens(), expected);
    EXPECT_EQ(beside->WaitForEnd(), absl::OkStatus());
    EXPECT_EQ(beside->tokens(), neighbours_tokens);
    ExpectAllFree();
  }
}

// T30, F8: the router still names the process that was there before.
TEST_F(DecodeSessionsTest, ARestartedPrefillWorkerRefusesCallsMeantForItsPredecessor) {
  v1::PrefillCandidate before = prefill_.candidate();
  before.set_instance_id(std::string(16, 'x'));
  DecodeJob job = MakeJob(100, 10, 9);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {before, prefill_.candidate()};
  const auto observer = decode_.Start(job);
  EXPECT_TRUE(observer->WaitForEnd().ok());
  EXPECT_EQ(observer->tokens(), expected);
  EXPECT_TRUE(observer->result().finished.split());
  ExpectAllFree();
}

// T01: the client leaves while its blocks wait for values that nobody will ever send.
TEST_F(DecodeSessionsTest, CancellingAWaitForALostPrefillWorkerFreesTheBlocksAtOnce) {
  std::atomic<bool> asked = false;
  ScriptedPrefill lost([&asked](grpc::ServerContext& context, auto&, auto&) {
    asked = true;
    WaitUntilCancelled(context);
    return grpc::Status::CANCELLED;
  });
  DecodeNode patient(model_.file(), inproc::MakeTransport(hub_), {.accept = std::chrono::hours(1)});
  DecodeJob job = MakeJob(200, 10, 13);
  job.prefill = {lost.candidate()};
  std::shared_ptr<Generation> generation;
  const auto observer = patient.Start(std::move(job), &generation);
  ASSERT_TRUE(WaitUntil([&asked] { return asked.load(); }));
  EXPECT_LT(patient.core->engine().load().free_blocks, patient.core->engine().load().total_blocks);

  generation->Cancel();

  EXPECT_EQ(observer->WaitForEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(AllBlocksFree(*patient.core));
  EXPECT_TRUE(observer->tokens().empty());
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

// The blocks land after the call has ended well without a first token: nothing else will come of
// it, and the request does not wait for its deadline.
TEST_F(DecodeSessionsTest, ACallThatEndsBeforeTheBlocksLandIsAFailureWithoutAFirstToken) {
  std::jthread prefilling;
  ScriptedPrefill hasty([&](grpc::ServerContext&, const v1::PrefillRequest& request, auto& writer) {
    absl::Notification accepted;
    prefilling = std::jthread([&, request] {
      const auto real = v1::PrefillWorker::NewStub(
          grpc::CreateChannel(prefill_.served.address(), grpc::InsecureChannelCredentials()));
      grpc::ClientContext context;
      const auto reader = real->Prefill(&context, request);
      v1::PrefillEvent event;
      EXPECT_TRUE(reader->Read(&event));
      writer.Write(event);
      accepted.Notify();
      while (reader->Read(&event)) {
      }
      reader->Finish().ok();
    });
    accepted.WaitForNotification();
    return grpc::Status::OK;
  });
  DecodeJob job = MakeJob(3000, 10, 17);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.deadline = Clock::System().Now() + std::chrono::seconds(10);
  job.prefill = {hasty.candidate()};
  const auto observer = decode_.Start(std::move(job));
  EXPECT_EQ(observer->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(observer->tokens(), expected);
  prefilling.join();
  ExpectAllFree();
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

// T04: the client leaves at the instant at which the prefill is done.
TEST_F(DecodeSessionsTest, CancellationAtTheFirstTokenAThousandTimes) {
  for (int i = 0; i < 1000; ++i) {
    DecodeJob job = MakeJob(40, 200, 15);
    job.prefill = {prefill_.candidate()};
    std::shared_ptr<Generation> generation;
    const auto observer = decode_.Start(std::move(job), &generation);
    observer->WaitForTokens(1);
    generation->Cancel();
    ASSERT_EQ(observer->WaitForEnd().code(), absl::StatusCode::kCancelled);
  }
  ExpectAllFree();
}

// What a test does when the process meets one failpoint.
class AtFailpoint final : public FailpointHandler {
 public:
  AtFailpoint(std::string name, std::function<void()> action)
      : name_(std::move(name)), action_(std::move(action)) {
    failpoint_handler.store(this, std::memory_order_release);
  }
  // REQUIRES: nobody is in a failpoint any more.
  ~AtFailpoint() override { failpoint_handler.store(nullptr, std::memory_order_release); }

  absl::Status OnHit(const char* name) override {
    if (name == name_) {
      action_();
    }
    return absl::OkStatus();
  }

 private:
  const std::string name_;
  const std::function<void()> action_;
};

// T04, B36: the cancellation comes from within the step in which the prefill worker is done, and
// from within those in which the decode worker has the last piece and adopts the blocks.
TEST_F(DecodeSessionsTest, CancellationInTheVeryStepThatEndsAThousandTimes) {
  DecodeJob job = MakeJob(40, 60, 15);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {prefill_.candidate()};
  struct Step {
    const char* name;
    int times;
  };
  for (const auto& [step, times] : {Step{"prefill.kServing", 1000}, Step{"decode.kLanded", 200},
                                    Step{"decode.kAdopted", 200}}) {
    SCOPED_TRACE(step);
    absl::Mutex mutex;
    std::shared_ptr<Generation> generation;
    int hits = 0;
    const AtFailpoint cancel(step, [&] {
      absl::MutexLock lock(&mutex);
      ++hits;
      generation->Cancel();
    });
    const auto cancelled = [&] {
      absl::MutexLock lock(&mutex);
      return hits;
    };
    int asked = 0;
    while (cancelled() < times && asked < 4 * times) {
      const int before = cancelled();
      std::shared_ptr<RecordingObserver> observer;
      {
        absl::MutexLock lock(&mutex);
        observer = decode_.Start(job, &generation);
      }
      ++asked;
      const absl::Status end = observer->WaitForEnd();
      const std::vector<std::uint32_t> tokens = observer->tokens();
      ASSERT_LE(tokens.size(), expected.size());
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin()));
      if (end.ok()) {
        // The last piece may land before the prefill worker's engine has said that it is done; then
        // there is no such step.
        ASSERT_EQ(tokens.size(), expected.size());
        ASSERT_EQ(cancelled(), before);
      } else {
        ASSERT_EQ(end.code(), absl::StatusCode::kCancelled) << end;
      }
    }
    EXPECT_EQ(cancelled(), times) << "of " << asked;
    ExpectAllFree();
  }
  const auto observer = decode_.Start(job);
  EXPECT_TRUE(observer->WaitForEnd().ok());
  EXPECT_EQ(observer->tokens(), expected);
}

// T14: the attempt is given up, for its first token, while the last piece lands: nobody may wait
// for another token.
TEST_F(DecodeSessionsTest, AnAttemptThatFailsWhileItsBlocksLandIsNotWaitedFor) {
  absl::Notification landing;
  absl::Notification given_up;
  ScriptedPrefill relay(
      [&](grpc::ServerContext& outer, const v1::PrefillRequest& request, auto& writer) {
        Relay(request, [&](v1::PrefillEvent& event) {
          if (event.has_first_token()) {
            EXPECT_TRUE(landing.WaitForNotificationWithTimeout(absl::Seconds(30)));
            event.mutable_first_token()->set_token(0x80000000);
            writer.Write(event);
            WaitUntilCancelled(outer);
            given_up.Notify();
          } else {
            writer.Write(event);
          }
        });
        return grpc::Status::CANCELLED;
      });
  DecodeJob job = MakeJob(200, 10, 17);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {relay.candidate()};
  const AtFailpoint land("decode.kLanded", [&] {
    landing.Notify();
    EXPECT_TRUE(given_up.WaitForNotificationWithTimeout(absl::Seconds(30)));
  });

  const auto observer = decode_.Start(std::move(job));

  EXPECT_EQ(observer->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(observer->tokens(), expected);
  ExpectAllFree();
}

// T52: the first tokens do not wait for the prefill worker's last word.
TEST_F(DecodeSessionsTest, TokensComeBeforeThePrefillCallHasEnded) {
  std::shared_ptr<RecordingObserver> observer;
  absl::Notification started;
  ScriptedPrefill late([&](grpc::ServerContext&, const v1::PrefillRequest& request, auto& writer) {
    const grpc::Status end =
        Relay(request, [&writer](const v1::PrefillEvent& event) { writer.Write(event); });
    started.WaitForNotification();
    EXPECT_TRUE(observer->WaitForTokens(10));  // all but the end has been said
    return end;
  });
  DecodeJob job = MakeJob(200, 10, 16);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {late.candidate()};
  observer = decode_.Start(std::move(job));
  started.Notify();
  EXPECT_TRUE(observer->WaitForEnd().ok());
  EXPECT_EQ(observer->tokens(), expected);
  EXPECT_TRUE(observer->result().finished.split());
  ExpectAllFree();
}

// Once it is told to, stands still in a token, and the engine with it.
class HoldingObserver final : public GenerationObserver {
 public:
  void OnProgress(const GenerationResult&) override {}
  void OnPromptLogprobs(v1::Logprobs) override {}
  void OnToken(GeneratedToken) override {
    // At a pace at which it lasts until then, however busy the machine is.
    told.WaitForNotificationWithTimeout(absl::Milliseconds(5));
    if (told.HasBeenNotified() && !holds.HasBeenNotified()) {
      holds.Notify();
      EXPECT_TRUE(go_on.WaitForNotificationWithTimeout(absl::Seconds(60)));
    }
  }
  void OnChoiceEnd(std::uint32_t, v1::FinishReason) override {}
  void OnFinished(const GenerationResult&) override { ended.Notify(); }
  void OnError(absl::Status) override { ended.Notify(); }

  absl::Notification told;
  absl::Notification holds;
  absl::Notification go_on;
  absl::Notification ended;
};

TEST_F(DecodeSessionsTest, TheFirstTokenDoesNotWaitForAStepThatIsUnderWay) {
  for (const bool logprobs : {false, true}) {
    const auto holding = std::make_shared<HoldingObserver>();
    std::shared_ptr<RecordingObserver> observer;
    absl::Notification started;
    ScriptedPrefill prefill(
        [&](grpc::ServerContext&, const v1::PrefillRequest& request, auto& writer) {
          return Relay(request, [&](const v1::PrefillEvent& event) {
            if (!event.has_first_token()) {
              writer.Write(event);
              return;
            }
            started.WaitForNotification();
            holding->told.Notify();
            EXPECT_TRUE(holding->holds.WaitForNotificationWithTimeout(absl::Seconds(60)));
            writer.Write(event);
            EXPECT_TRUE(observer->WaitForTokens(1));
            EXPECT_EQ(observer->tokens().size(), 1u);
            EXPECT_FALSE(holding->go_on.HasBeenNotified());
            holding->go_on.Notify();
          });
        });
    DecodeJob job = MakeJob(200, 10, 17);
    if (logprobs) {
      job.sequence.set_logprobs(2);
    }
    const std::vector<std::uint32_t> expected = Colocated(job);
    job.prefill = {prefill.candidate()};
    const auto running = decode_.sessions.Start(MakeJob(20, 4000), holding);
    observer = decode_.Start(std::move(job));
    started.Notify();
    EXPECT_TRUE(observer->WaitForEnd().ok());
    running->Cancel();
    EXPECT_EQ(observer->tokens(), expected);
    EXPECT_EQ(observer->logprobs().size(), logprobs ? expected.size() : 0);
    EXPECT_TRUE(observer->result().finished.split());
    EXPECT_TRUE(holding->ended.WaitForNotificationWithTimeout(absl::Seconds(60)));
    ExpectAllFree();
  }
}

TEST_F(DecodeSessionsTest, CancellationAtAnyMomentFreesBothSides) {
  for (int delay_ms = 0; delay_ms < 30; delay_ms += 2) {
    DecodeJob job = MakeJob(1500, 200, 10);
    job.prefill = {prefill_.candidate()};
    std::shared_ptr<Generation> generation;
    const auto observer = decode_.Start(std::move(job), &generation);
    const TimePoint until = Clock::System().Now() + milliseconds(delay_ms);
    WaitUntil([until] { return Clock::System().Now() >= until; });
    generation->Cancel();
    EXPECT_EQ(observer->WaitForEnd().code(), absl::StatusCode::kCancelled) << delay_ms;
    ExpectAllFree();
  }
}

TEST_F(DecodeSessionsTest, ADeadlineInTheMiddleOfAHandoffFreesBothSides) {
  DecodeJob job = MakeJob(3000, 200, 11);
  job.prefill = {prefill_.candidate()};
  job.deadline = Clock::System().Now() + milliseconds(20);
  const auto observer = decode_.Start(std::move(job));
  EXPECT_EQ(observer->WaitForEnd().code(), absl::StatusCode::kDeadlineExceeded);
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
