// Several choices, log probabilities and echo with the real programs, by every path.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "baton/v1/completions.grpc.pb.h"
#include "common/utf8.h"
#include "decode_worker/choice_seed.h"
#include "proto/status_conversion.h"
#include "tests/support/cluster.h"
#include "tests/support/reference_engine.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

constexpr v1::Path kBothPaths[] = {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED};
constexpr std::uint64_t kSeed = 4711;

v1::CompleteRequest SeededRequest(const Tokens& prompt, std::uint32_t max_tokens) {
  v1::CompleteRequest request = GreedyRequest(prompt, max_tokens, v1::PATH_UNSPECIFIED);
  request.mutable_sampling()->set_temperature(0.9f);
  request.mutable_sampling()->set_seed(kSeed);
  return request;
}

Tokens TokensOf(const v1::Choice& choice) {
  return {choice.token_ids().begin(), choice.token_ids().end()};
}

// Under a cache salt of its own, so that every request computes or moves all of its prompt.
v1::CompleteResponse CompleteBy(const Cluster& cluster,
                                v1::Path path,
                                v1::CompleteRequest request) {
  static int calls = 0;
  request.set_path(path);
  if (request.cache_salt().empty()) {
    request.set_cache_salt(absl::StrCat("call ", ++calls));
  }
  const absl::StatusOr<v1::CompleteResponse> response = cluster.client().Complete(request);
  EXPECT_TRUE(response.ok()) << response.status();
  if (!response.ok()) {
    return {};
  }
  EXPECT_EQ(response->timeline().path(), path);
  return *response;
}

// The same floats, to the bit, whether a token was sampled or stood in the prompt.
void ExpectEchoedLogprobs(const Cluster& cluster, const Tokens& prompt) {
  constexpr int kAnswer = 40;
  const int prompt_tokens = static_cast<int>(prompt.size());
  v1::CompleteRequest request = SeededRequest(prompt, kAnswer);
  request.set_logprobs(5);
  const v1::Choice answer = CompleteBy(cluster, v1::PATH_COLOCATED, request).choices(0);
  ASSERT_EQ(answer.logprobs().tokens_size(), kAnswer);
  v1::CompleteRequest echoed = GreedyRequest(prompt, 1, v1::PATH_UNSPECIFIED);
  echoed.mutable_tokens()->mutable_ids()->MergeFrom(answer.token_ids());
  echoed.set_logprobs(5);
  echoed.set_echo(true);
  for (const v1::Path path : kBothPaths) {
    SCOPED_TRACE(v1::Path_Name(path));
    EXPECT_EQ(CompleteBy(cluster, path, request).choices(0).SerializeAsString(),
              answer.SerializeAsString());
    const v1::Choice echo = CompleteBy(cluster, path, echoed).choices(0);

    ASSERT_EQ(echo.token_ids_size(), prompt_tokens + kAnswer + 1);
    ASSERT_EQ(echo.logprobs().tokens_size(), echo.token_ids_size());
    for (int i = 0; i < kAnswer; ++i) {
      EXPECT_EQ(echo.logprobs().tokens(prompt_tokens + i).SerializeAsString(),
                answer.logprobs().tokens(i).SerializeAsString())
          << i;
    }
  }
}

// One cluster for all tests: each leaves it idle.
class SamplingTest : public testing::Test {
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

  static v1::CompleteResponse CompleteBy(v1::Path path, const v1::CompleteRequest& request) {
    return ::baton::CompleteBy(*cluster_, path, request);
  }

  // What one engine by itself makes of choice `index`.
  static Tokens Expected(v1::CompleteRequest request, std::uint32_t index) {
    request.clear_n();
    request.mutable_sampling()->set_seed(ChoiceSeed(request.sampling().seed(), index));
    const absl::StatusOr<Tokens> tokens = reference_->Generate(request);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return tokens.value_or(Tokens{});
  }

  static void ExpectChoices(const v1::CompleteRequest& request,
                            const v1::CompleteResponse& response) {
    ASSERT_EQ(response.choices_size(), static_cast<int>(request.n()));
    std::size_t tokens = 0;
    for (std::uint32_t i = 0; i < request.n(); ++i) {
      const v1::Choice& choice = response.choices(static_cast<int>(i));
      EXPECT_EQ(choice.index(), i);
      EXPECT_EQ(TokensOf(choice), Expected(request, i)) << "choice " << i;
      tokens += static_cast<std::size_t>(choice.token_ids_size());
    }
    EXPECT_EQ(response.usage().completion_tokens(), tokens);
  }

  static std::unique_ptr<ReferenceEngine> reference_;
  static std::unique_ptr<Cluster> cluster_;
};

std::unique_ptr<ReferenceEngine> SamplingTest::reference_;
std::unique_ptr<Cluster> SamplingTest::cluster_;

// B27: whatever else runs, and however often it is asked.
TEST_F(SamplingTest, SeededChoicesDependOnTheRequestAlone) {
  v1::CompleteRequest request = SeededRequest(TinyPrompt(1, 600), 40);
  const v1::CompleteResponse single = CompleteBy(v1::PATH_COLOCATED, request);
  request.set_n(4);
  for (const v1::Path path : kBothPaths) {
    SCOPED_TRACE(v1::Path_Name(path));
    const v1::CompleteResponse alone = CompleteBy(path, request);
    const auto company =
        cluster_->client().Stream(GreedyRequest(TinyPrompt(2, 300), 4000, v1::PATH_COLOCATED));
    ASSERT_TRUE(company->WaitForTokens(1));
    const v1::CompleteResponse again = CompleteBy(path, request);
    company->Cancel();

    ExpectChoices(request, alone);
    ExpectChoices(request, again);
    EXPECT_EQ(TokensOf(alone.choices(0)), TokensOf(single.choices(0)));
    std::set<Tokens> different;
    for (const v1::Choice& choice : alone.choices()) {
      different.insert(TokensOf(choice));
      EXPECT_EQ(choice.finish_reason(), v1::FINISH_REASON_LENGTH);
    }
    EXPECT_EQ(different.size(), 4u);
  }
}

TEST_F(SamplingTest, GreedyChoicesAreEqual) {
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(3, 100), 30, v1::PATH_UNSPECIFIED);
  request.set_n(16);
  for (const v1::Path path : kBothPaths) {
    const v1::CompleteResponse response = CompleteBy(path, request);
    ExpectChoices(request, response);
    EXPECT_EQ(response.choices(15).text(), response.choices(0).text());
  }
}

// B42: the first token of a choice may be its last.
TEST_F(SamplingTest, ChoicesOfOneAndTwoTokens) {
  for (const std::uint32_t max_tokens : {1u, 2u}) {
    for (const std::size_t length : {1, 16, 17, 600}) {
      v1::CompleteRequest request = SeededRequest(TinyPrompt(4, length), max_tokens);
      request.set_n(3);
      for (const v1::Path path : kBothPaths) {
        SCOPED_TRACE(absl::StrCat(v1::Path_Name(path), ", max_tokens ", max_tokens,
                                  ", prompt tokens: ", length));
        const v1::CompleteResponse response = CompleteBy(path, request);
        ExpectChoices(request, response);
        EXPECT_EQ(response.usage().completion_tokens(), 3 * max_tokens);
      }
    }
  }
}

// Choices end one by one, each where its own text or tokens say so.
TEST_F(SamplingTest, EachChoiceEndsByItself) {
  constexpr std::uint32_t kStopToken = 3 + 'q';
  v1::CompleteRequest request = SeededRequest(TinyPrompt(5, 600), 300);
  request.set_n(4);
  request.add_stop_token_ids(kStopToken);
  (*request.mutable_sampling()->mutable_logit_bias())[kStopToken] = 1;
  for (const v1::Path path : kBothPaths) {
    SCOPED_TRACE(v1::Path_Name(path));
    const v1::CompleteResponse response = CompleteBy(path, request);
    ExpectChoices(request, response);
    for (const v1::Choice& choice : response.choices()) {
      const bool stopped = TokensOf(choice).back() == kStopToken;
      EXPECT_EQ(choice.finish_reason(),
                stopped ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH);
    }
  }
}

// A stop string of one choice leaves the others alone, and the tokens after it are never computed.
TEST_F(SamplingTest, AStopStringEndsItsChoice) {
  constexpr std::uint32_t kMaxTokens = 200;
  v1::CompleteRequest request = SeededRequest(TinyPrompt(6, 600), kMaxTokens);
  request.set_n(4);
  const v1::CompleteResponse free_running = CompleteBy(v1::PATH_COLOCATED, request);
  std::string stop;  // that only choice 2 has, and has early
  const std::string& text = free_running.choices(2).text();
  for (std::size_t i = 4; i + 4 < text.size() && stop.empty(); ++i) {
    const std::string piece = text.substr(i, 4);
    bool elsewhere = FindInvalidUtf8(piece).has_value();
    for (const int other : {0, 1, 3}) {
      elsewhere = elsewhere || absl::StrContains(free_running.choices(other).text(), piece);
    }
    stop = elsewhere ? "" : piece;
  }
  ASSERT_NE(stop, "");
  request.add_stop(stop);
  for (const v1::Path path : kBothPaths) {
    SCOPED_TRACE(v1::Path_Name(path));
    ASSERT_TRUE(cluster_->WaitUntilIdle());
    const std::uint64_t before = cluster_->decode().Load().decoded_tokens();
    const v1::CompleteResponse response = CompleteBy(path, request);

    for (const int i : {0, 1, 3}) {
      EXPECT_EQ(response.choices(i).text(), free_running.choices(i).text()) << i;
      EXPECT_EQ(response.choices(i).finish_reason(), v1::FINISH_REASON_LENGTH);
    }
    const v1::Choice& stopped = response.choices(2);
    EXPECT_EQ(stopped.text(), text.substr(0, text.find(stop)));
    EXPECT_EQ(stopped.stop_match(), stop);
    EXPECT_EQ(stopped.finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_LT(stopped.token_ids_size(), static_cast<int>(kMaxTokens));
    ASSERT_TRUE(cluster_->WaitUntilIdle());
    EXPECT_LE(cluster_->decode().Load().decoded_tokens() - before,
              response.usage().completion_tokens());
  }
}

TEST_F(SamplingTest, LogprobsOfTheAnswerAreThoseOfItsEcho) {
  ExpectEchoedLogprobs(*cluster_, TinyPrompt(7, 600));
}

// B29: the log probabilities are the model's own, whatever the sampling leaves of them.
TEST_F(SamplingTest, LogprobsAreFiniteAndTheModelsOwn) {
  v1::CompleteRequest request = SeededRequest(TinyPrompt(8, 530), 12);
  request.mutable_sampling()->set_top_k(1);
  request.mutable_sampling()->set_repetition_penalty(1.5f);
  (*request.mutable_sampling()->mutable_logit_bias())[5] = -3e38f;
  request.set_logprobs(20);
  request.set_echo(true);
  request.set_n(2);
  for (const v1::Path path : kBothPaths) {
    SCOPED_TRACE(v1::Path_Name(path));
    const v1::CompleteResponse response = CompleteBy(path, request);
    for (const v1::Choice& choice : response.choices()) {
      ASSERT_EQ(choice.logprobs().tokens_size(), 530 + 12);
      EXPECT_EQ(choice.logprobs().tokens(0).logprob(), 0);
      EXPECT_EQ(choice.logprobs().tokens(0).alternatives_size(), 0);
      for (int i = 0; i < choice.logprobs().tokens_size(); ++i) {
        const v1::TokenLogprob& token = choice.logprobs().tokens(i);
        EXPECT_EQ(token.id(), choice.token_ids(i));
        EXPECT_TRUE(std::isfinite(token.logprob()));
        EXPECT_LE(token.logprob(), 0);
        EXPECT_EQ(token.alternatives_size(), i == 0 ? 0 : 20);
        double mass = 0;
        float above = 0;
        for (const v1::TokenLogprob::Alternative& alternative : token.alternatives()) {
          EXPECT_LE(alternative.logprob(), above) << "most likely first";
          above = alternative.logprob();
          mass += std::exp(static_cast<double>(alternative.logprob()));
          if (alternative.id() == token.id()) {
            EXPECT_EQ(alternative.logprob(), token.logprob());
          }
        }
        EXPECT_LT(mass, 1.0001);
      }
    }
  }
}

TEST_F(SamplingTest, EchoIsThePromptAndTheAnswer) {
  const std::string prompt = VariedText(9, 900) + " caf\xC3\xA9 \xF0\x9F\x98\x80";
  v1::CompleteRequest request = SeededRequest({}, 20);
  request.set_text(prompt);
  request.set_n(3);
  const v1::CompleteResponse plain = CompleteBy(v1::PATH_COLOCATED, request);
  request.set_echo(true);
  for (const v1::Path path : kBothPaths) {
    SCOPED_TRACE(v1::Path_Name(path));
    const v1::CompleteResponse echoed = CompleteBy(path, request);
    ASSERT_EQ(echoed.choices_size(), 3);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(echoed.choices(i).text(), prompt + plain.choices(i).text());
      EXPECT_EQ(echoed.choices(i).token_ids_size(),
                static_cast<int>(echoed.usage().prompt_tokens()) + 20);
    }
    EXPECT_EQ(echoed.usage().completion_tokens(), plain.usage().completion_tokens());
    EXPECT_EQ(echoed.usage().prompt_tokens(), plain.usage().prompt_tokens());
  }
}

// More than a client with gRPC's default limit takes in one message: it streams.
TEST_F(SamplingTest, ALongEchoWithAllAlternatives) {
  constexpr int kPrompt = 16'000;
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(10, kPrompt), 2, v1::PATH_DISAGGREGATED);
  request.set_logprobs(20);
  request.set_echo(true);
  request.set_n(2);
  EXPECT_EQ(cluster_->client().Complete(request).status().code(),
            absl::StatusCode::kResourceExhausted);
  grpc::ClientContext context;
  const auto stub = v1::Completions::NewStub(cluster_->client().channel());
  const auto reader = stub->StreamComplete(&context, request);
  int entries = 0;
  std::size_t bytes = 0;
  for (v1::CompleteChunk chunk; reader->Read(&chunk);) {
    entries += chunk.choice().logprobs().tokens_size();
    bytes += chunk.ByteSizeLong();
  }
  const absl::Status status = FromGrpcStatus(reader->Finish());

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(entries, 2 * (kPrompt + 2));
  EXPECT_GT(bytes, std::size_t{4} << 20);
}

// B17, B21: without max_tokens, and with a context that has room for one more.
TEST_F(SamplingTest, APromptThatLeavesRoomForOneToken) {
  v1::CompleteRequest request =
      GreedyRequest(TinyPrompt(13, kTinyContext - 1), 1, v1::PATH_UNSPECIFIED);
  request.clear_max_tokens();
  request.set_n(2);
  for (const v1::Path path : kBothPaths) {
    const v1::CompleteResponse response = CompleteBy(path, request);
    ExpectChoices(request, response);
    EXPECT_EQ(response.choices(1).finish_reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(response.usage().prompt_tokens(), kTinyContext - 1u);
    EXPECT_EQ(response.usage().completion_tokens(), 2u);
  }
}

// Salted prompts are other prompts to the cache, and the same to the model.
TEST_F(SamplingTest, ACacheSaltChangesNoToken) {
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(11, 600), 20, v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request, 0);
  for (const std::string& salt : {std::string("one"), std::string(128, '\xFF')}) {
    request.set_cache_salt(salt);
    for (const v1::Path path : kBothPaths) {
      EXPECT_EQ(TokensOf(CompleteBy(path, request).choices(0)), expected);
    }
  }
}

// T46 and DESIGN.md: a request that is given up holds no block a second later, all its choices.
TEST_F(SamplingTest, CancellationEndsAllChoices) {
  for (const v1::Path path : kBothPaths) {
    SCOPED_TRACE(v1::Path_Name(path));
    v1::CompleteRequest request = SeededRequest(TinyPrompt(12, 600), 6000);
    request.set_n(4);
    request.set_path(path);
    const auto stream = cluster_->client().Stream(request);
    ASSERT_TRUE(stream->WaitForTokens(40));
    EXPECT_GE(cluster_->decode().Load().running_sequences(), 4u);

    stream->Cancel();

    EXPECT_TRUE(cluster_->WaitUntilIdle(Promised(std::chrono::seconds(1))));
    EXPECT_EQ(stream->WaitForEnd()->code(), absl::StatusCode::kCancelled);
  }
}

// On the real model, whose log probabilities are spread over 49,152 tokens.
TEST(ExampleSamplingTest, LogprobsOfTheAnswerAreThoseOfItsEcho) {
  const absl::StatusOr<TestModel> model = ExampleModel();
  ASSERT_TRUE(model.ok()) << model.status();
  auto cluster = Cluster::Start({.model = *model, .kv_pool_size = "128MiB"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ExpectEchoedLogprobs(**cluster, TinyPrompt(14, 530));
  EXPECT_TRUE((*cluster)->WaitUntilIdle());
}

}  // namespace
}  // namespace baton
