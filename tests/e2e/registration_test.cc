// Whole workers that are given a router: what they tell it from their start to their end.
#include <gtest/gtest.h>

#include <csignal>

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

INSTANTIATE_TEST_SUITE_P(Roles, RegistrationTest, testing::Values("decode", "prefill"));

}  // namespace
}  // namespace baton
