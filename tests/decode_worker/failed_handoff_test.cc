// Prefill workers that refuse, fall silent, end early or say what is not so: the client gets the
// right tokens or an error.
#include <functional>

#include "absl/synchronization/notification.h"
#include "tests/decode_worker/two_sided_sessions.h"

namespace baton {
namespace {

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

}  // namespace
}  // namespace baton
