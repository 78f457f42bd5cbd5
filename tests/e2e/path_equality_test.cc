// The defining test: a request gets the same tokens whatever path it takes. Real model, greedy and
// seeded, over every transport there is.

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kvtransfer/inproc/inproc_transport.h"
#include "tests/support/cluster.h"
#include "tests/support/reference_engine.h"
#include "tests/support/two_workers.h"

namespace baton {
namespace {

constexpr std::uint32_t kNewTokens = 64;
constexpr std::size_t kPoolBytes = 256 << 20;
constexpr Duration kLongest = std::chrono::minutes(10);  // of one request on a busy machine
// T25, T26, F29: one token, around one block, around the threshold.
constexpr std::size_t kPromptTokens[] = {1,   2,   15,  16,  17,  100,  255,
                                         256, 511, 512, 513, 600, 1024, 3000};

// The first `count` tokens of a text of its own.
Tokens PromptOf(const Checkpoint& checkpoint, std::uint64_t seed, std::size_t count) {
  constexpr std::size_t kMostBytesOfToken = 8;
  const std::vector<TokenId> ids =
      checkpoint.tokenizer().Encode(VariedText(seed, kMostBytesOfToken * count), false).value();
  Tokens tokens;
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back(ids.at(i).value());
  }
  return tokens;
}

class PathEqualityTest : public testing::Test {
 protected:
  // What one prompt must give.
  struct Case {
    v1::CompleteRequest request;
    v1::SequenceSpec sequence;  // the same, as a worker is asked for it
    Tokens expected;
    std::string name;
  };

  static void SetUpTestSuite() {
    const absl::StatusOr<TestModel> model = ExampleModel();
    ASSERT_TRUE(model.ok()) << model.status();
    auto reference = ReferenceEngine::Start(*model, kPoolBytes);
    ASSERT_TRUE(reference.ok()) << reference.status();
    std::uint64_t seed = 1;
    for (const std::size_t count : kPromptTokens) {
      const Tokens prompt = PromptOf((*reference)->checkpoint(), seed++, count);
      AddCase(**reference, GreedyRequest(prompt, kNewTokens, v1::PATH_UNSPECIFIED), "greedy");
    }
    // What ends a text may come, and the next token depends on those before it.
    for (const std::size_t count : {std::size_t{16}, std::size_t{100}, std::size_t{513}}) {
      v1::CompleteRequest request = GreedyRequest(
          PromptOf((*reference)->checkpoint(), seed++, count), kNewTokens, v1::PATH_UNSPECIFIED);
      request.set_ignore_eos(false);
      request.mutable_sampling()->set_temperature(0.8f);
      request.mutable_sampling()->set_top_p(0.95f);
      request.mutable_sampling()->set_repetition_penalty(1.1f);
      request.mutable_sampling()->set_seed(1000 + count);
      AddCase(**reference, request, "seeded");
    }
  }

  static void AddCase(ReferenceEngine& reference,
                      const v1::CompleteRequest& request,
                      const std::string& how) {
    absl::StatusOr<v1::SequenceSpec> sequence = reference.SpecOf(request);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    absl::StatusOr<Tokens> expected = reference.Generate(request);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const std::string name =
        how + ", prompt tokens: " + std::to_string(request.tokens().ids_size());
    cases_.push_back({.request = request,
                      .sequence = *std::move(sequence),
                      .expected = *std::move(expected),
                      .name = name});
  }

  // Every case through a router with forced path.
  static void CompleteAll(Cluster& cluster,
                          v1::Path path,
                          const std::string& transport = "mapped") {
    for (const Case& one : cases_) {
      SCOPED_TRACE(one.name);
      v1::CompleteRequest request = one.request;
      request.set_path(path);

      const auto response = cluster.client().Complete(request, kLongest);

      ASSERT_TRUE(response.ok()) << response.status();
      EXPECT_EQ(TokensOf(*response), one.expected);
      EXPECT_EQ(response->usage().completion_tokens(), one.expected.size());
      EXPECT_EQ(response->timeline().path(), path);
      EXPECT_EQ(response->timeline().reason(), v1::ROUTE_REASON_REQUESTED);
      EXPECT_EQ(response->timeline().transport(), path == v1::PATH_DISAGGREGATED ? transport : "");
    }
    EXPECT_TRUE(cluster.WaitUntilIdle());
  }

  static std::unique_ptr<Cluster> StartCluster(const std::string& prefix_cache,
                                               const std::string& transport = "auto") {
    auto cluster = Cluster::Start(
        {.model = *ExampleModel(),
         .kv_pool_size = "256MiB",
         .worker_flags = {"--prefix-cache", prefix_cache, "--kv-transport", transport}});
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    return cluster.ok() ? *std::move(cluster) : nullptr;
  }

  static std::vector<Case> cases_;
};

std::vector<PathEqualityTest::Case> PathEqualityTest::cases_;

TEST_F(PathEqualityTest, DisaggregatedOverEachTransportAndColocated) {
  for (const std::string transport : {"tcp", "mapped", "grpc"}) {
    SCOPED_TRACE(transport);
    const std::unique_ptr<Cluster> cluster = StartCluster("off", transport);
    ASSERT_NE(cluster, nullptr);

    CompleteAll(*cluster, v1::PATH_DISAGGREGATED, transport);
    // T22: whatever of the prompts was not on the prefill side was not computed on the decode side
    // either.
    EXPECT_EQ(cluster->decode().Load().prefilled_tokens(), 0u);
    if (transport == "tcp") {
      CompleteAll(*cluster, v1::PATH_COLOCATED);
    }
  }
}

// The third pass finds whole prompts in both caches, the second what the first has left in one.
TEST_F(PathEqualityTest, WithPrefixHits) {
  const std::unique_ptr<Cluster> cluster = StartCluster("on");
  ASSERT_NE(cluster, nullptr);

  CompleteAll(*cluster, v1::PATH_COLOCATED);
  CompleteAll(*cluster, v1::PATH_DISAGGREGATED);
  CompleteAll(*cluster, v1::PATH_DISAGGREGATED);
  CompleteAll(*cluster, v1::PATH_COLOCATED);
  EXPECT_GT(cluster->decode().Load().prefix_hit_tokens(), 0u);
  EXPECT_GT(cluster->prefill().Load().prefix_hit_tokens(), 0u);
}

TEST_F(PathEqualityTest, InProcessTransport) {
  const auto hub = inproc::MakeHub();
  const std::string model = ExampleModel()->path;
  PrefillNode prefill(model, inproc::MakeTransport(hub), NodeEngine(kPoolBytes));
  DecodeNode decode(model, inproc::MakeTransport(hub), {}, NodeEngine(kPoolBytes));

  for (const Case& one : cases_) {
    SCOPED_TRACE(one.name);
    const auto observer = decode.Start(MakeSplitJob(one.sequence, prefill));
    EXPECT_EQ(observer->WaitForEnd(), absl::OkStatus());
    EXPECT_EQ(observer->tokens(), one.expected);
    EXPECT_TRUE(observer->result().finished.split());
    EXPECT_EQ(observer->result().finished.transport(), "inproc");
  }
  EXPECT_TRUE(AllBlocksFree(*prefill.core));
  EXPECT_TRUE(AllBlocksFree(*decode.core));
}

// A model that answers everything alike would make the tests above say nothing.
TEST_F(PathEqualityTest, AnswersDiffer) {
  for (std::size_t i = 0; i < cases_.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_NE(cases_[i].expected, cases_[j].expected)
          << cases_[i].name << " / " << cases_[j].name;
    }
  }
}

}  // namespace
}  // namespace baton
