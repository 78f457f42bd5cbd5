// Requests that must stay in a residency zone, and a zone whose workers have gone (T71).
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/status_conversion.h"
#include "tests/support/cluster.h"
#include "tests/support/scrape.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

// A decode and a prefill worker in each of two zones.
class ZonesTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* zone : {"r1", "r2"}) {
      for (const char* role : {"decode", "prefill"}) {
        std::vector<std::string> flags = TinyModel().Flags();
        flags.insert(flags.end(), {"--kv-pool-size", "32MiB", "--zone", zone, "--metrics-listen",
                                   "127.0.0.1:0", "--router", router_.address()});
        workers_.push_back(std::make_unique<ServerProcess>(role, flags));
        ASSERT_EQ(workers_.back()->Launch(), absl::OkStatus());
      }
    }
    ASSERT_EQ(router_.Launch(), absl::OkStatus());
    for (const auto& worker : workers_) {
      ASSERT_EQ(worker->AwaitReady(), absl::OkStatus());
    }
    ASSERT_EQ(router_.AwaitReady(), absl::OkStatus());
    ASSERT_TRUE(AwaitUsable(4));
  }

  bool AwaitUsable(int count) {
    return WaitUntil(
        [&] {
          const auto status = router_.Status();
          if (!status.ok()) {
            return false;
          }
          int usable = 0;
          for (const v1::WorkerStatus& worker : status->workers()) {
            usable += worker.alive() && worker.problem().empty() ? 1 : 0;
          }
          return usable == count;
        },
        kPatience);
  }

  static v1::CompleteRequest Request(const std::string& zone, std::uint64_t seed, v1::Path path) {
    v1::CompleteRequest request = GreedyRequest(TinyPrompt(seed, 600), 8, path);
    request.set_zone(zone);
    return request;
  }

  // A worker of r2 has never seen anything.
  static void ExpectUntouched(const ServerProcess& worker) {
    SCOPED_TRACE(worker.address());
    const v1::EngineLoad load = worker.Load();
    EXPECT_EQ(load.total_blocks(), load.free_blocks());
    EXPECT_EQ(load.cached_blocks(), 0u);
    EXPECT_EQ(load.prefilled_tokens() + load.decoded_tokens(), 0u);
    EXPECT_EQ(load.prefix_query_tokens(), 0u) << "nobody has even asked it for the prompt";
    EXPECT_EQ(worker.Describe()->kv_peers_size(), 0);
    const auto samples = Scrape(worker.Door("metrics"));
    ASSERT_TRUE(samples.ok()) << samples.status();
    int seen = 0;
    for (const auto& [name, value] : *samples) {
      if (name.starts_with("baton_kv_transfer_bytes")) {
        EXPECT_EQ(value, 0) << name;
        ++seen;
      }
    }
    EXPECT_GT(seen, 0);
  }

  ServerProcess router_{"router", TinyModel().Flags()};
  std::vector<std::unique_ptr<ServerProcess>> workers_;  // of r1, then of r2; decode first
};

TEST_F(ZonesTest, WhenTheZoneIsDownNothingOfItsRequestsGoesElsewhere) {
  const CompletionsClient client(router_.address());
  for (const v1::Path path : {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED}) {
    const auto response = client.Complete(Request("r1", 1, path));
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->timeline().decode_worker(), workers_[0]->address());
  }
  // The prefix is in the router's index by now, as r1's.
  ASSERT_TRUE(WaitUntil([&] { return router_.Status()->prefix_index().entries() >= 2 * 37; }));
  const std::uint64_t entries = router_.Status()->prefix_index().entries();

  // r1 goes, under requests.
  std::vector<std::unique_ptr<StreamedCompletion>> streams;
  for (std::uint64_t i = 0; i < 4; ++i) {
    v1::CompleteRequest request = Request("r1", 2 + i, v1::PATH_UNSPECIFIED);
    request.set_max_tokens(10'000);
    streams.push_back(client.Stream(request));
    ASSERT_TRUE(streams.back()->WaitForTokens(1));
  }
  workers_[0]->process().Kill();
  workers_[1]->process().Kill();
  for (const auto& stream : streams) {
    EXPECT_EQ(stream->WaitForEnd()->code(), absl::StatusCode::kAborted);
  }
  ASSERT_TRUE(AwaitUsable(2));
  for (const v1::Path path : {v1::PATH_UNSPECIFIED, v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED}) {
    for (const std::uint64_t seed : {1, 20}) {  // known, and new
      const auto response = client.Complete(Request("r1", seed, path));
      EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable) << response.status();
      EXPECT_EQ(ReasonOf(response.status()), "NO_WORKER_IN_ZONE");
    }
  }
  ExpectUntouched(*workers_[2]);
  ExpectUntouched(*workers_[3]);
  EXPECT_LT(router_.Status()->prefix_index().entries(), entries)
      << "r1's part of the index is gone";
  EXPECT_EQ(router_.Status()->prefix_index().entries(), 0u);

  // The same prompt in r2 finds nothing of r1's, and is answered there.
  const auto other = client.Complete(Request("r2", 1, v1::PATH_DISAGGREGATED));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->usage().cached_prompt_tokens(), 0u);
  EXPECT_EQ(other->timeline().decode_worker(), workers_[2]->address());

  // When r1 is back its requests are served again.
  ASSERT_EQ(workers_[0]->Start(), absl::OkStatus());
  ASSERT_TRUE(AwaitUsable(3));
  const auto back = client.Complete(Request("r1", 1, v1::PATH_UNSPECIFIED));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->timeline().decode_worker(), workers_[0]->address());
}

}  // namespace
}  // namespace baton
