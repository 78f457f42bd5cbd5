#include "prefill_worker/prefill_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "proto/identity_conversion.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/two_workers.h"

namespace baton {
namespace {

using testing::HasSubstr;

class PrefillServiceTest : public testing::Test {
 protected:
  v1::PrefillRequest ValidRequest(int prompt_tokens) {
    v1::PrefillRequest request;
    request.set_request_id("r");
    request.set_handoff_id(std::string(HandoffId::Make().AsBytes()));
    request.set_epoch(1);
    request.set_decode_instance_id(std::string(InstanceId::Make().AsBytes()));
    *request.mutable_identity() = ToProto(node_.core->engine().identity());
    *request.mutable_sequence() = MakeJob(prompt_tokens, 4).sequence;
    return request;
  }

  // Events until the call ends; it is cancelled after `events` of them.
  grpc::Status Call(const v1::PrefillRequest& request,
                    std::vector<v1::PrefillEvent>& events,
                    std::size_t most) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const auto reader = stub_->Prefill(&context, request);
    v1::PrefillEvent event;
    while (events.size() < most && reader->Read(&event)) {
      events.push_back(event);
    }
    if (events.size() == most) {
      context.TryCancel();
    }
    return reader->Finish();
  }

  void ExpectIdle() {
    EXPECT_TRUE(WaitUntil([this] { return node_.service.InFlight() == 0; }));
    EXPECT_TRUE(AllBlocksFree(*node_.core));
  }

  const TinyCheckpoint model_;
  PrefillNode node_{model_.file(), inproc::MakeTransport(inproc::MakeHub())};
  const std::unique_ptr<v1::PrefillWorker::Stub> stub_ = v1::PrefillWorker::NewStub(
      grpc::CreateChannel(node_.served.address(), grpc::InsecureChannelCredentials()));
};

TEST_F(PrefillServiceTest, AcceptsAtOnceAndSendsTheFirstToken) {
  std::vector<v1::PrefillEvent> events;
  Call(ValidRequest(300), events, 2);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].accepted().instance_id(), node_.core->instance().AsBytes());
  EXPECT_EQ(events[0].accepted().kv_address(), node_.core->transfer().address());
  EXPECT_TRUE(events[1].has_first_token());
  ExpectIdle();  // B34, T12: the caller has gone before it fetched anything
}

// T18: with one token wanted nobody fetches, so nobody renews a lease: the call must not depend on
// one, however long the prompt takes.
TEST_F(PrefillServiceTest, OffersNoBlocksWhenOnlyTheFirstTokenIsWanted) {
  v1::PrefillRequest request = ValidRequest(300);
  std::vector<v1::PrefillEvent> events;
  Call(request, events, 2);
  ASSERT_EQ(events.size(), 2u);
  const std::uint32_t expected = events[1].first_token().token();
  ExpectIdle();  // its blocks were offered, and are withdrawn a moment after the call's end
  request.set_handoff_id(std::string(HandoffId::Make().AsBytes()));
  request.set_first_token_only(true);
  events.clear();

  const grpc::Status status = Call(request, events, 9);

  EXPECT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].first_token().token(), expected);
  EXPECT_EQ(node_.core->transfer().stats().offers, 0);
  ExpectIdle();
}

// T54, F36: a decode worker that would compute other tokens is refused in words, whichever the
// difference, and so is one that shares no transport.
TEST_F(PrefillServiceTest, RefusesADifferentIdentityWithTheDifference) {
  struct Case {
    const char* named;
    std::function<void(v1::PrefillRequest&)> change;
  };
  const auto of = [](v1::PrefillRequest& request) { return request.mutable_identity(); };
  const Case cases[] = {
      {"model_fingerprint: ours ",
       [&](auto& r) { of(r)->mutable_model_fingerprint()->at(0) ^= 1; }},
      {"tokenizer_fingerprint: ours ",
       [&](auto& r) { of(r)->mutable_tokenizer_fingerprint()->at(0) ^= 1; }},
      {"layers: ours 2, theirs 31", [&](auto& r) { of(r)->set_layers(31); }},
      {"kv_heads: ours ", [&](auto& r) { of(r)->set_kv_heads(9); }},
      {"head_dim: ours ", [&](auto& r) { of(r)->set_head_dim(7); }},
      {"block_tokens: ours 16, theirs 32", [&](auto& r) { of(r)->set_block_tokens(32); }},
      {"element_type: ours ", [&](auto& r) { of(r)->set_element_type("f16"); }},
      {"layout_id: ours ", [&](auto& r) { of(r)->set_layout_id("other"); }},
      {"layer_bytes: ours ", [&](auto& r) { of(r)->set_layer_bytes(1); }},
      {"theirs cpu-other", [&](auto& r) { of(r)->set_arithmetic("cpu-other"); }},
      {"rope_base: ours ", [&](auto& r) { of(r)->set_rope_base(77); }},
      {"rms_epsilon: ours ", [&](auto& r) { of(r)->set_rms_epsilon(0.5); }},
      {"theirs pigeon", [&](auto& r) { r.add_kv_transports("pigeon"); }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.named);
    v1::PrefillRequest request = ValidRequest(20);
    one.change(request);
    std::vector<v1::PrefillEvent> events;
    const grpc::Status status = Call(request, events, 9);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr(one.named));
    EXPECT_TRUE(events.empty());
  }
  ExpectIdle();
  EXPECT_EQ(node_.core->engine().load().prefilled_tokens, 0u);
}

TEST_F(PrefillServiceTest, RefusesMalformedRequestsAndGoesOn) {
  const std::vector<std::function<void(v1::PrefillRequest&)>> damages = {
      [](auto& request) { request.set_handoff_id("short"); },
      [](auto& request) { request.clear_decode_instance_id(); },
      [](auto& request) { request.clear_identity(); },
      [](auto& request) { request.mutable_sequence()->clear_prompt(); },
      [](auto& request) { request.mutable_sequence()->set_prompt(0, 512); },
      [](auto& request) { request.mutable_sequence()->set_max_tokens(0); },
      [](auto& request) { request.mutable_sequence()->set_max_tokens(100000); },
  };
  for (std::size_t i = 0; i < damages.size(); ++i) {
    v1::PrefillRequest request = ValidRequest(20);
    damages[i](request);
    std::vector<v1::PrefillEvent> events;
    EXPECT_EQ(Call(request, events, 9).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << i;
  }
  v1::PrefillRequest restarted = ValidRequest(20);
  restarted.set_expected_instance_id(std::string(16, 'x'));
  std::vector<v1::PrefillEvent> events;
  EXPECT_EQ(Call(restarted, events, 9).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  events.clear();
  Call(ValidRequest(20), events, 2);
  EXPECT_EQ(events.size(), 2u);
  ExpectIdle();
}

TEST_F(PrefillServiceTest, CancellationDuringThePrefillStopsIt) {
  std::vector<v1::PrefillEvent> events;
  Call(ValidRequest(3500), events, 1);
  ExpectIdle();
  EXPECT_LT(node_.core->engine().load().prefilled_tokens, 3500u);
}

// How one fetch ends. Thread-safe.
class AwaitedFetch final : public FetchSink {
 public:
  void OnLanded(HandoffId, const FetchStats&) override { Take(absl::OkStatus()); }
  void OnFailed(HandoffId, const absl::Status& why, const std::vector<int>&) override { Take(why); }
  absl::Status Await() {
    done_.WaitForNotification();
    return status_;
  }

 private:
  void Take(const absl::Status& status) {
    status_ = status;
    done_.Notify();
  }

  absl::Status status_;
  absl::Notification done_;
};

// T50: an epoch has 64 bits from the call to the last message of the transfer: neither one cut to
// 32 bits nor one that went through a double stands for it.
TEST_F(PrefillServiceTest, AnEpochKeepsItsSixtyFourBits) {
  struct Row {
    std::uint64_t epoch;
    std::uint64_t cut;
  };
  constexpr std::uint64_t kOne = 1;
  constexpr Row kRows[] = {{(kOne << 31) + 1, 0xffffffff80000001},  // as a signed one
                           {(kOne << 32) + 1, 1},
                           {(kOne << 53) + 1, kOne << 53},
                           {~std::uint64_t{0}, 0xffffffff}};
  const auto hub = inproc::MakeHub();
  PrefillNode prefill(model_.file(), inproc::MakeTransport(hub));
  const auto decode =
      MakeCore(model_.file(), v1::ROLE_DECODE, inproc::MakeTransport(hub), NodeEngine());
  const auto stub = v1::PrefillWorker::NewStub(
      grpc::CreateChannel(prefill.served.address(), grpc::InsecureChannelCredentials()));
  const auto fetch = [&](std::uint64_t of_call, std::uint64_t of_fetch) {
    constexpr int kBlocks = 3;
    v1::PrefillRequest request = ValidRequest(kBlocks * kBlockTokens);
    const HandoffId id = HandoffId::Make();
    request.set_handoff_id(std::string(id.AsBytes()));
    request.set_epoch(of_call);
    request.set_decode_instance_id(std::string(decode->instance().AsBytes()));
    grpc::ClientContext context;
    const auto reader = stub->Prefill(&context, request);
    v1::PrefillEvent event;
    EXPECT_TRUE(reader->Read(&event) && event.has_accepted());
    AwaitedFetch sink;
    FetchRequest wanted{.id = id,
                        .epoch = of_fetch,
                        .address = event.accepted().kv_address(),
                        .peer = prefill.core->instance(),
                        .pin = std::make_unique<RegionPin>(),
                        .deadline = Clock::System().Now() + std::chrono::seconds(10),
                        .sink = &sink};
    for (int i = 0; i < kBlocks; ++i) {
      wanted.blocks.push_back({i, BlockId(static_cast<std::uint32_t>(i))});
    }
    EXPECT_EQ(decode->transfer().Fetch(std::move(wanted)), absl::OkStatus());
    const absl::Status end = sink.Await();
    context.TryCancel();
    reader->Finish();
    return end;
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.epoch);
    EXPECT_EQ(fetch(row.epoch, row.epoch), absl::OkStatus());
    EXPECT_FALSE(fetch(row.epoch, row.cut).ok());
    EXPECT_FALSE(fetch(row.cut, row.epoch).ok());
  }
  EXPECT_TRUE(AllBlocksFree(*prefill.core));
  EXPECT_TRUE(AllBlocksFree(*decode));
}

TEST_F(PrefillServiceTest, ADrainingWorkerTakesNothingNew) {
  node_.service.StopIntake();
  std::vector<v1::PrefillEvent> events;
  EXPECT_EQ(Call(ValidRequest(20), events, 9).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(node_.core->Describe().draining());
}

}  // namespace
}  // namespace baton
