// Every path at its edges, on a tiny model: all lengths around blocks and the threshold, one token,
// no token left to compute, many at once.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvtransfer/inproc/inproc_transport.h"
#include "tests/support/cluster.h"
#include "tests/support/reference_engine.h"
#include "tests/support/scrape.h"
#include "tests/support/two_workers.h"

namespace baton {
namespace {

constexpr std::uint32_t kEndOfSequence = 2;
constexpr v1::Path kBothPaths[] = {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED};

// T25, T26, F29, F40.
std::vector<std::size_t> EdgeLengths() {
  std::vector<std::size_t> lengths = {100, 255, 256, 257, 511, 512, 513, 600};
  for (std::size_t length = 1; length <= 64; ++length) {
    lengths.push_back(length);
  }
  return lengths;
}

// One cluster for all tests: each leaves it idle.
class PathEdgesTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto reference = ReferenceEngine::Start(TinyModel());
    ASSERT_TRUE(reference.ok()) << reference.status();
    reference_ = *std::move(reference);
    auto cluster = Cluster::Start();
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  static void TearDownTestSuite() {
    cluster_.reset();
    reference_.reset();
  }

  void SetUp() override { ASSERT_NE(cluster_, nullptr); }
  void TearDown() override { EXPECT_TRUE(cluster_->WaitUntilIdle()); }

  // The answer to `request` by `path`, which must equal the reference.
  static v1::CompleteResponse CompleteBy(v1::Path path, v1::CompleteRequest request) {
    request.set_path(path);
    const absl::StatusOr<Tokens> expected = reference_->Generate(request);
    const absl::StatusOr<v1::CompleteResponse> response = cluster_->client().Complete(request);
    EXPECT_TRUE(expected.ok()) << expected.status();
    EXPECT_TRUE(response.ok()) << response.status();
    if (!expected.ok() || !response.ok()) {
      return {};
    }
    EXPECT_EQ(TokensOf(*response), *expected);
    EXPECT_EQ(response->timeline().path(), path);
    return *response;
  }

  static std::unique_ptr<ReferenceEngine> reference_;
  static std::unique_ptr<Cluster> cluster_;
};

std::unique_ptr<ReferenceEngine> PathEdgesTest::reference_;
std::unique_ptr<Cluster> PathEdgesTest::cluster_;

TEST_F(PathEdgesTest, EveryLengthByEveryPath) {
  const auto hub = inproc::MakeHub();
  PrefillNode prefill(TinyModel().path, inproc::MakeTransport(hub));
  DecodeNode decode(TinyModel().path, inproc::MakeTransport(hub));
  for (const std::size_t length : EdgeLengths()) {
    SCOPED_TRACE(absl::StrCat("prompt tokens: ", length));
    const v1::CompleteRequest request =
        GreedyRequest(TinyPrompt(length, length), 20, v1::PATH_UNSPECIFIED);

    const v1::CompleteResponse colocated = CompleteBy(v1::PATH_COLOCATED, request);
    const v1::CompleteResponse split = CompleteBy(v1::PATH_DISAGGREGATED, request);
    const auto in_process = decode.Start(MakeSplitJob(*reference_->SpecOf(request), prefill));

    EXPECT_EQ(colocated.timeline().transport(), "");
    // What `auto` takes on one host.
    EXPECT_EQ(split.timeline().transport(), "mapped");
    EXPECT_EQ(split.timeline().prefill_worker(), cluster_->prefill().address());
    EXPECT_EQ(split.usage().prompt_tokens(), length);
    EXPECT_EQ(in_process->WaitForEnd(), absl::OkStatus());
    EXPECT_EQ(in_process->tokens(), TokensOf(split));
    EXPECT_EQ(in_process->result().finished.transport(), "inproc");
  }
  EXPECT_TRUE(AllBlocksFree(*prefill.core));
  EXPECT_TRUE(AllBlocksFree(*decode.core));
}

// The same tokens over each transport that is asked for, and what an endpoint really uses is told.
TEST_F(PathEdgesTest, EveryTransport) {
  for (const std::string transport : {"tcp", "mapped", "grpc"}) {
    SCOPED_TRACE(transport);
    const auto cluster = Cluster::Start(
        {.worker_flags = {"--kv-transport", transport, "--metrics-listen", "127.0.0.1:0"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    for (const std::size_t length : {1, 15, 16, 17, 100, 257, 513, 600, 2000}) {
      SCOPED_TRACE(absl::StrCat("prompt tokens: ", length));
      const v1::CompleteRequest request =
          GreedyRequest(TinyPrompt(length + 7, length), 20, v1::PATH_DISAGGREGATED);
      const absl::StatusOr<Tokens> expected = reference_->Generate(request);
      const auto response = (*cluster)->client().Complete(request);

      ASSERT_TRUE(expected.ok()) << expected.status();
      ASSERT_TRUE(response.ok()) << response.status();
      EXPECT_EQ(TokensOf(*response), *expected);
      EXPECT_EQ(response->timeline().transport(), transport);
    }
    EXPECT_TRUE((*cluster)->WaitUntilIdle());
    for (const ServerProcess* worker : {&(*cluster)->prefill(), &(*cluster)->decode()}) {
      const auto description = worker->Describe();
      ASSERT_TRUE(description.ok()) << description.status();
      EXPECT_EQ(description->transport(), transport);
      ASSERT_EQ(description->kv_peers_size(), 1);
      EXPECT_EQ(description->kv_peers(0).transport(), transport);
      EXPECT_EQ(description->kv_peers(0).carrier(), transport == "grpc" ? "grpc" : "tcp");
      EXPECT_NE(description->kv_peers(0).reason(), "");
      // T55: the same in the metrics.
      const auto samples = Scrape(worker->Door("metrics"));
      ASSERT_TRUE(samples.ok()) << samples.status();
      for (const std::string other : {"rdma", "mapped", "tcp", "grpc"}) {
        const auto sample = samples->lower_bound(
            absl::StrCat("baton_kv_transport_peers{transport=\"", other, "\""));
        ASSERT_NE(sample, samples->end());
        EXPECT_EQ(sample->second, other == transport ? 1 : 0) << sample->first;
      }
    }
    // And in the log of the side that chooses, once for the peer.
    const std::string log = (*cluster)->decode().process().ErrorOutput();
    const std::size_t chosen = log.find(" peer.connected ");
    ASSERT_NE(chosen, std::string::npos) << log;
    EXPECT_EQ(log.find(" peer.connected ", chosen + 1), std::string::npos);
    EXPECT_NE(log.substr(chosen, log.find('\n', chosen) - chosen)
                  .find(absl::StrCat(" transport=", transport, " ")),
              std::string::npos);
  }
}

// T26: the rule counts the tokens that are not cached, and 512 itself is split.
TEST_F(PathEdgesTest, TheThresholdSplits) {
  constexpr v1::RouteReason kShort = v1::ROUTE_REASON_SHORT_PROMPT;
  constexpr v1::RouteReason kSplit = v1::ROUTE_REASON_PREFILL_QUICKER;
  constexpr v1::RouteReason kCached = v1::ROUTE_REASON_PREFIX_CACHED;
  struct Row {
    std::size_t known;  // tokens of the prompt that the decode worker has served before
    std::size_t length;
    v1::RouteReason reason;
  };
  const Row rows[] = {{0, 1, kShort},     {0, 511, kShort},    {0, 512, kSplit},
                      {0, 513, kSplit},   {500, 600, kCached}, {88, 600, kSplit},
                      {96, 607, kCached}, {96, 608, kSplit},   {511, 512, kCached}};
  std::uint32_t seed = 100;
  for (const auto& [known, length, reason] : rows) {
    SCOPED_TRACE(absl::StrCat("prompt tokens: ", length, ", known: ", known));
    const auto request = [&](std::size_t tokens, v1::Path path) {
      return GreedyRequest(TinyPrompt(seed, tokens), 4, path);
    };
    if (known > 0) {
      CompleteBy(v1::PATH_COLOCATED, request(known, v1::PATH_COLOCATED));
    }
    const v1::CompleteRequest free_choice = request(length, v1::PATH_UNSPECIFIED);
    const auto response = cluster_->client().Complete(free_choice);

    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->timeline().reason(), reason);
    EXPECT_EQ(response->timeline().path(),
              reason == kSplit ? v1::PATH_DISAGGREGATED : v1::PATH_COLOCATED);
    const absl::StatusOr<Tokens> expected = reference_->Generate(free_choice);
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_EQ(TokensOf(*response), *expected);
    ++seed;
  }
}

// T22: the decode side computes nothing of a prompt that comes from the other side.
TEST_F(PathEdgesTest, ASplitPromptIsComputedOnce) {
  const v1::EngineLoad decode_before = cluster_->decode().Load();
  const v1::EngineLoad prefill_before = cluster_->prefill().Load();

  CompleteBy(v1::PATH_DISAGGREGATED, GreedyRequest(TinyPrompt(2, 1000), 8, v1::PATH_UNSPECIFIED));

  EXPECT_TRUE(cluster_->WaitUntilIdle());
  EXPECT_EQ(cluster_->decode().Load().prefilled_tokens(), decode_before.prefilled_tokens());
  EXPECT_EQ(cluster_->prefill().Load().prefilled_tokens(),
            prefill_before.prefilled_tokens() + 1000);
}

// T18, B42: one token asked for is one token, and nothing is moved for it.
TEST_F(PathEdgesTest, OneAndTwoTokens) {
  for (const std::uint32_t max_tokens : {1u, 2u}) {
    for (const v1::Path path : kBothPaths) {
      for (const std::size_t length : {1, 16, 17, 600}) {
        SCOPED_TRACE(absl::StrCat(v1::Path_Name(path), ", max_tokens ", max_tokens,
                                  ", prompt tokens: ", length));
        const v1::CompleteResponse response =
            CompleteBy(path, GreedyRequest(TinyPrompt(3, length), max_tokens, path));

        EXPECT_EQ(response.usage().completion_tokens(), max_tokens);
        EXPECT_EQ(response.choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
        const bool moved = max_tokens > 1 && path == v1::PATH_DISAGGREGATED;
        EXPECT_EQ(response.timeline().transport(), moved ? "mapped" : "");
      }
    }
  }
}

// The prefill worker logs the end of everything it has offered, with the bytes it has sent.
TEST_F(PathEdgesTest, OneTokenMovesNoBytes) {
  const auto offer_of = [](const std::string& id) {
    const std::string log = cluster_->prefill().process().ErrorOutput();
    const std::size_t end = log.find(absl::StrCat("handoff.ended request=", id));
    return end == std::string::npos ? "" : log.substr(end, log.find('\n', end) - end);
  };
  const auto complete = [](const std::string& id, std::uint32_t max_tokens) {
    v1::CompleteRequest request =
        GreedyRequest(TinyPrompt(4, 600), max_tokens, v1::PATH_DISAGGREGATED);
    request.set_request_id(id);
    CompleteBy(v1::PATH_DISAGGREGATED, request);
    EXPECT_TRUE(cluster_->WaitUntilIdle());
  };

  complete("moves-nothing", 1);
  complete("moves-blocks", 2);
  // Logged once the blocks are free. What came before it would have been logged before it.
  EXPECT_TRUE(WaitUntil([&] { return !offer_of("moves-blocks").empty(); }));
  EXPECT_EQ(offer_of("moves-blocks").find(" bytes=0 "), std::string::npos)
      << offer_of("moves-blocks");
  EXPECT_EQ(offer_of("moves-nothing"), "");
}

// T18: the first token may be the last of the text.
TEST_F(PathEdgesTest, EndOfSequenceAsTheFirstToken) {
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(5, 600), 50, v1::PATH_UNSPECIFIED);
  request.set_ignore_eos(false);
  (*request.mutable_sampling()->mutable_logit_bias())[kEndOfSequence] = 1000;
  for (const v1::Path path : kBothPaths) {
    SCOPED_TRACE(v1::Path_Name(path));
    const v1::CompleteResponse response = CompleteBy(path, request);

    EXPECT_EQ(TokensOf(response), Tokens{kEndOfSequence});
    EXPECT_EQ(response.choices(0).text(), "");
    EXPECT_EQ(response.choices(0).finish_reason(), v1::FINISH_REASON_STOP);
  }
}

TEST_F(PathEdgesTest, AStopTokenAsTheFirstToken) {
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(6, 600), 50, v1::PATH_UNSPECIFIED);
  const absl::StatusOr<Tokens> free_running = reference_->Generate(request);
  ASSERT_TRUE(free_running.ok());
  request.add_stop_token_ids(free_running->front());
  for (const v1::Path path : kBothPaths) {
    SCOPED_TRACE(v1::Path_Name(path));
    const v1::CompleteResponse response = CompleteBy(path, request);

    EXPECT_EQ(TokensOf(response), Tokens{free_running->front()});
    EXPECT_EQ(response.choices(0).finish_reason(), v1::FINISH_REASON_STOP);
  }
}

// B43: the prefill side samples one token, whatever min_tokens says.
TEST_F(PathEdgesTest, MinTokensOnBothPaths) {
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(7, 600), 50, v1::PATH_UNSPECIFIED);
  request.set_ignore_eos(false);
  request.set_min_tokens(10);
  (*request.mutable_sampling()->mutable_logit_bias())[kEndOfSequence] = 1000;
  for (const v1::Path path : kBothPaths) {
    SCOPED_TRACE(v1::Path_Name(path));
    const Tokens tokens = TokensOf(CompleteBy(path, request));

    ASSERT_EQ(tokens.size(), 11u);
    EXPECT_EQ(tokens.back(), kEndOfSequence);
  }
}

// A stop string ends the text in the middle of decoding; the rest of the work must end with it.
TEST_F(PathEdgesTest, AStopStringEndsBothPaths) {
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(8, 600), 4000, v1::PATH_DISAGGREGATED);
  (*request.mutable_sampling()->mutable_logit_bias())[3 + 'q'] = 1000;
  request.add_stop("qqq");
  for (const v1::Path path : kBothPaths) {
    SCOPED_TRACE(v1::Path_Name(path));
    request.set_path(path);
    const auto response = cluster_->client().Complete(request);

    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->choices(0).stop_match(), "qqq");
    EXPECT_EQ(response->choices(0).text(), "");
    EXPECT_EQ(response->timeline().path(), path);
    EXPECT_TRUE(cluster_->WaitUntilIdle(Promised(std::chrono::seconds(1))));
  }
}

// The same seed gives the same text by every path, and another seed another one.
TEST_F(PathEdgesTest, SeededSampling) {
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(9, 700), 40, v1::PATH_UNSPECIFIED);
  request.mutable_sampling()->set_temperature(0.8f);
  std::vector<Tokens> texts;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
    request.mutable_sampling()->set_seed(seed);
    texts.push_back(TokensOf(CompleteBy(v1::PATH_COLOCATED, request)));
    EXPECT_EQ(TokensOf(CompleteBy(v1::PATH_DISAGGREGATED, request)), texts.back());
  }
  EXPECT_NE(texts[0], texts[1]);
  EXPECT_NE(texts[0], texts[2]);
}

// B40: many handoffs at once, and none gets another's blocks or first token.
TEST_F(PathEdgesTest, ManyAtOnce) {
  constexpr std::uint64_t kPrompts = 32;
  std::vector<Tokens> expected;
  std::vector<std::unique_ptr<StreamedCompletion>> streams;
  std::vector<v1::CompleteRequest> requests;
  for (std::uint64_t seed = 0; seed < kPrompts; ++seed) {
    requests.push_back(
        GreedyRequest(TinyPrompt(100 + seed, 30 + 37 * seed), 24, kBothPaths[seed % 2]));
    const absl::StatusOr<Tokens> tokens = reference_->Generate(requests.back());
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    expected.push_back(*tokens);
  }

  for (const v1::CompleteRequest& request : requests) {
    streams.push_back(cluster_->client().Stream(request));
  }

  for (std::size_t i = 0; i < streams.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("prompt ", i));
    EXPECT_EQ(streams[i]->WaitForEnd(), absl::OkStatus());
    EXPECT_EQ(streams[i]->tokens(), expected[i]);
    EXPECT_EQ(streams[i]->timeline().path(), requests[i].path());
  }
}

}  // namespace
}  // namespace baton
