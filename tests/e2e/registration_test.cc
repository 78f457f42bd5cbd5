// Whole workers that are given a router: what they tell it from their start to their end.
#include <gtest/gtest.h>

#include <csignal>
#include <set>

#include "common/block_hash.h"
#include "kvtransfer/transfer_types.h"
#include "kvtransfer/ucx/ucx_transport.h"
#include "model/checkpoint.h"
#include "tests/support/cluster.h"
#include "tests/support/wait_until.h"
#include "tests/worker/fake_fleet.h"

namespace baton {
namespace {

class RegistrationTest : public testing::TestWithParam<const char*> {
 protected:
  std::vector<std::string> Flags(std::vector<std::string> more) const {
    std::vector<std::string> flags = TinyModel().Flags();
    flags.insert(flags.end(), {"--kv-pool-size", "8MiB"});
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  // The prompt's prefill, as a decode worker asks for it.
  static void ComputeAt(const ServerProcess& worker, const Tokens& prompt) {
    const auto description = worker.Describe();
    ASSERT_TRUE(description.ok()) << description.status();
    v1::PrefillRequest request;
    request.set_request_id("r");
    request.set_handoff_id(std::string(HandoffId::Make().AsBytes()));
    request.set_epoch(1);
    request.set_decode_instance_id(std::string(InstanceId::Make().AsBytes()));
    *request.mutable_identity() = description->identity();
    request.mutable_sequence()->mutable_prompt()->Add(prompt.begin(), prompt.end());
    request.mutable_sequence()->set_max_tokens(1);
    request.mutable_sequence()->mutable_sampling()->set_top_p(1);
    request.mutable_sequence()->mutable_sampling()->set_repetition_penalty(1);
    request.set_first_token_only(true);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const auto stub = v1::PrefillWorker::NewStub(MakeTestChannel(worker.address()));
    const auto reader = stub->Prefill(&context, request);
    v1::PrefillEvent event;
    while (reader->Read(&event)) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
};

TEST_P(RegistrationTest, AWorkerIsKnownFromItsStartToItsDrain) {
  FakeFleet router;
  ServerProcess worker(GetParam(), Flags({"--router", router.address(), "--zone", "eu",
                                          "--max-sequences", "7", "--max-batch-tokens", "96"}));
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  ASSERT_TRUE(WaitUntil([&] { return router.worker().has_snapshot(); }));
  const v1::WorkerDescription description = router.worker().description();
  EXPECT_EQ(description.address(), worker.address());
  EXPECT_EQ(description.zone(), "eu");
  EXPECT_EQ(description.max_sequences(), 7u);
  EXPECT_EQ(description.max_batch_tokens(), 96u);
  EXPECT_EQ(description.role(),
            std::string_view(GetParam()) == "decode" ? v1::ROLE_DECODE : v1::ROLE_PREFILL);
  const auto self = worker.Describe();
  ASSERT_TRUE(self.ok()) << self.status();
  EXPECT_EQ(description.instance_id(), self->instance_id());

  worker.process().Signal(SIGTERM);
  EXPECT_TRUE(WaitUntil([&] { return router.open() == 0; }));
  EXPECT_TRUE(router.said_draining());
  const auto end = worker.process().WaitForEnd(kPatience);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code, 0);
}

// F8: another process at the old address is another worker.
TEST_P(RegistrationTest, ARestartedWorkerIsAnotherInstance) {
  const FakeFleet router;
  ServerProcess worker(GetParam(), Flags({"--router", router.address()}));
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  ASSERT_TRUE(WaitUntil([&] { return router.worker().has_snapshot(); }));
  const std::string before = router.worker().description().instance_id();
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  ASSERT_TRUE(WaitUntil([&] { return router.open() == 1 && router.worker().has_snapshot(); }));
  EXPECT_NE(router.worker().description().instance_id(), before);
  EXPECT_EQ(router.worker().description().address(), worker.address());
}

// F53.
TEST_P(RegistrationTest, AWorkerServesWithoutItsRouter) {
  ServerProcess worker(GetParam(), Flags({"--router", "127.0.0.1:1"}));
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  EXPECT_TRUE(worker.Describe().ok());
  EXPECT_TRUE(WaitUntil([&] {
    return worker.process().ErrorOutput().find("router.unreachable") != std::string::npos;
  }));
  worker.process().Signal(SIGTERM);
  const auto end = worker.process().WaitForEnd(kPatience);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code, 0);
}

// B61: SERVING is not said before the first request can be served: of a decode worker that is asked
// directly, and of a router over it that learns of its workers by registration. Neither waits for
// the ready line: whoever watches health sees nothing else.
TEST(Serving, TheFirstRequestAfterItIsServed) {
  std::vector<std::string> flags = TinyModel().Flags();
  ServerProcess router("router", flags);
  flags.insert(flags.end(), {"--kv-pool-size", "8MiB", "--router", router.address()});
  ServerProcess decode("decode", flags);
  const v1::CompleteRequest request = GreedyRequest(TinyPrompt(1, 40), 4, v1::PATH_UNSPECIFIED);
  for (int round = 0; round < 5; ++round) {
    SCOPED_TRACE(round);
    ASSERT_EQ(router.Launch(), absl::OkStatus());
    ASSERT_EQ(decode.Launch(), absl::OkStatus());
    for (const ServerProcess* server : {&decode, &router}) {
      const CompletionsClient client(server->address());
      ASSERT_TRUE(WaitUntil([&] { return client.IsServing(); }, kPatience));
      const auto response = client.Complete(request);
      EXPECT_TRUE(response.ok()) << response.status();
    }
    decode.process().Kill();
    const CompletionsClient client(router.address());
    EXPECT_TRUE(WaitUntil([&] { return !client.IsServing(); }, kPatience));
  }
}

// B52, T58: two workers, each in three lives, and this process give the blocks of one prompt the
// same names.
TEST_P(RegistrationTest, BlocksHaveTheSameNamesInEveryProcess) {
  constexpr std::size_t kPrompt = 100;
  const Tokens prompt = TinyPrompt(7, kPrompt);
  auto checkpoint = Checkpoint::Open(TinyModel().path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::vector<PrefixHash> hashes =
      HashBlocks(RootHash({.model_fingerprint = (*checkpoint)->fingerprint(),
                           .tokenizer_fingerprint = (*checkpoint)->tokenizer().fingerprint()}),
                 std::vector<TokenId>(prompt.begin(), prompt.end()));
  std::set<std::string> expected;
  for (const PrefixHash& hash : hashes) {
    expected.insert(std::string(hash.bytes.begin(), hash.bytes.end()));
  }
  ASSERT_EQ(expected.size(), kPrompt / 16);
  const FakeFleet router;
  const bool decodes = std::string_view(GetParam()) == "decode";
  ServerProcess worker(GetParam(), Flags({"--router", router.address()}));
  for (int life = 0; life < 3; ++life) {
    SCOPED_TRACE(life);
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    ASSERT_TRUE(WaitUntil([&] { return router.open() == 1 && router.worker().has_snapshot(); }));
    EXPECT_TRUE(router.worker().held().empty()) << "what the life before knew is gone";
    if (decodes) {
      const CompletionsClient client(worker.address());
      ASSERT_TRUE(client.Complete(GreedyRequest(prompt, 1, v1::PATH_COLOCATED)).ok());
    } else {
      ComputeAt(worker, prompt);
    }
    EXPECT_TRUE(WaitUntil([&] { return router.worker().held() == expected; }))
        << router.worker().held().size() << " blocks";
  }
}

INSTANTIATE_TEST_SUITE_P(Roles, RegistrationTest, testing::Values("decode", "prefill"));

// T34: every decode worker is gone for good, and one that nobody knew comes: the first request
// after that is answered.
TEST(Fleet, ANewDecodeWorkerReplacesAllThatThereWere) {
  const auto cluster = Cluster::Start({.decode_workers = 2, .registered = true});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const CompletionsClient& client = (*cluster)->client();
  const v1::CompleteRequest request = GreedyRequest(TinyPrompt(1, 600), 8, v1::PATH_UNSPECIFIED);
  const absl::StatusOr<v1::CompleteResponse> before = client.Complete(request);
  ASSERT_TRUE(before.ok()) << before.status();
  for (std::size_t i = 0; i < 2; ++i) {
    (*cluster)->decode(i).process().Kill();
  }
  ASSERT_TRUE((*cluster)->WaitForUsableWorkers(1));
  ASSERT_TRUE(WaitUntil([&] { return !client.IsServing(); }));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.Complete(request).status().code(), absl::StatusCode::kUnavailable);
  }

  std::vector<std::string> flags = TinyModel().Flags();
  flags.insert(flags.end(),
               {"--kv-pool-size", "32MiB", "--router", (*cluster)->router().address()});
  ServerProcess late("decode", flags);
  ASSERT_EQ(late.Start(), absl::OkStatus());
  ASSERT_TRUE(WaitUntil([&] { return client.IsServing(); }));

  const absl::StatusOr<v1::CompleteResponse> after = client.Complete(request);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(TokensOf(*after), TokensOf(*before));
  EXPECT_EQ(after->timeline().decode_worker(), late.address());
  EXPECT_EQ(after->timeline().path(), v1::PATH_DISAGGREGATED);
}

// T36: before the first prefill worker has come the router serves, and says why nothing is split.
TEST(Fleet, WithoutAPrefillWorkerEverythingIsColocated) {
  const auto cluster = Cluster::Start({.prefill_workers = 0, .registered = true});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const CompletionsClient& client = (*cluster)->client();
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(1, 600), 8, v1::PATH_UNSPECIFIED);
  EXPECT_TRUE(client.IsServing());
  const absl::StatusOr<v1::CompleteResponse> alone = client.Complete(request);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->timeline().path(), v1::PATH_COLOCATED);
  EXPECT_EQ(alone->timeline().reason(), v1::ROUTE_REASON_NO_PREFILL_WORKER);
  request.set_path(v1::PATH_DISAGGREGATED);
  EXPECT_EQ(client.Complete(request).status().code(), absl::StatusCode::kUnavailable);

  std::vector<std::string> flags = TinyModel().Flags();
  flags.insert(flags.end(),
               {"--kv-pool-size", "32MiB", "--router", (*cluster)->router().address()});
  ServerProcess first("prefill", flags);
  ASSERT_EQ(first.Start(), absl::OkStatus());
  absl::StatusOr<v1::CompleteResponse> split;
  ASSERT_TRUE(WaitUntil([&] { return (split = client.Complete(request)).ok(); }));
  EXPECT_EQ(TokensOf(*split), TokensOf(*alone));
  EXPECT_EQ(split->timeline().prefill_worker(), first.address());
}

// T54: workers whose arithmetic differs would compute different tokens. Both serve, each request is
// answered, and nothing is ever split between them.
TEST(Fleet, WorkersThatDifferAreNeverPaired) {
  const auto cluster = Cluster::Start(
      {.decode_flags = {"--cpu-isa", "plain"}, .prefill_flags = {"--cpu-isa", "avx2"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(1, 600), 8, v1::PATH_UNSPECIFIED);

  const absl::StatusOr<v1::CompleteResponse> response = (*cluster)->client().Complete(request);

  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->timeline().path(), v1::PATH_COLOCATED);
  EXPECT_EQ(response->timeline().reason(), v1::ROUTE_REASON_NO_PREFILL_WORKER);
  request.set_path(v1::PATH_DISAGGREGATED);
  EXPECT_EQ((*cluster)->client().Complete(request).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*cluster)->prefill().Load().prefilled_tokens(), 0u);
}

// T55: what is asked for and not to be had here is refused at the start.
TEST(Fleet, RdmaWithoutADeviceIsRefusedAtTheStart) {
  if (ucx::FindRdma().why.empty()) {
    GTEST_SKIP() << "skipped: this machine has an RDMA device";
  }
  for (const char* const role : {"decode", "prefill"}) {
    std::vector<std::string> flags = TinyModel().Flags();
    flags.insert(flags.end(), {"--kv-pool-size", "8MiB", "--kv-transport", "rdma"});
    const auto worker = ChildProcess::Start(ProgramPath(std::string("baton-") + role), flags);
    ASSERT_TRUE(worker.ok()) << worker.status();
    const std::optional<ProcessEnd> end = (*worker)->WaitForEnd(kPatience);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->code, 1);
    EXPECT_NE((*worker)->ErrorOutput().find("rdma is not to be had here"), std::string::npos)
        << (*worker)->ErrorOutput();
    EXPECT_EQ((*worker)->ReadRest(), "") << "it never said that it was ready";
  }
}

// T53: nobody could come to this name.
TEST(Fleet, AnAdvertisedHostThatIsNoneIsRefusedAtTheStart) {
  for (const char* const role : {"decode", "prefill"}) {
    std::vector<std::string> flags = TinyModel().Flags();
    flags.insert(flags.end(), {"--kv-pool-size", "8MiB", "--kv-listen", "0.0.0.0:0",
                               "--advertise-host", "no-such-host.invalid"});
    const auto worker = ChildProcess::Start(ProgramPath(std::string("baton-") + role), flags);
    ASSERT_TRUE(worker.ok()) << worker.status();
    const std::optional<ProcessEnd> end = (*worker)->WaitForEnd(kPatience);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->code, 1);
    EXPECT_NE((*worker)->ErrorOutput().find("no-such-host.invalid"), std::string::npos)
        << (*worker)->ErrorOutput();
    EXPECT_EQ((*worker)->ReadRest(), "") << "it never said that it was ready";
  }
}

}  // namespace
}  // namespace baton
