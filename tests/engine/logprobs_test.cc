#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/engine/engine_fixture.h"

namespace baton {
namespace {

bool Same(const SelectedToken& a, const SelectedToken& b) {
  if (a.token != b.token || a.logprob != b.logprob ||
      a.alternatives.size() != b.alternatives.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.alternatives.size(); ++i) {
    if (a.alternatives[i].token != b.alternatives[i].token ||
        a.alternatives[i].logprob != b.alternatives[i].logprob) {
      return false;
    }
  }
  return true;
}

void ExpectSame(const std::vector<SelectedToken>& actual,
                const std::vector<SelectedToken>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(Same(actual[i], expected[i])) << "entry " << i;
  }
}

class LogprobsTest : public testing::Test {
 protected:
  static SequenceRequest Request(int prompt_tokens, int max_tokens) {
    std::mt19937 random(7);
    SequenceRequest request{.max_tokens = max_tokens, .logprobs = 3};
    for (int i = 0; i < prompt_tokens; ++i) {
      request.prompt.emplace_back(3 + static_cast<std::uint32_t>(random() % 500));
    }
    return request;
  }

  static std::shared_ptr<CollectingSink> Start(const TestEngine& engine, SequenceRequest request) {
    auto sink = std::make_shared<CollectingSink>();
    request.sink = sink;
    EXPECT_TRUE(engine->Submit(std::move(request)).ok());
    return sink;
  }
  static std::shared_ptr<CollectingSink> Run(const TestEngine& engine, SequenceRequest request) {
    auto sink = Start(engine, std::move(request));
    EXPECT_TRUE(sink->WaitForEnd().status.ok());
    return sink;
  }

  const std::unique_ptr<Checkpoint> checkpoint_ = OpenTinyModel();
};

TEST_F(LogprobsTest, ComeOnlyWhenAskedFor) {
  const TestEngine engine = MakeEngine(*checkpoint_, 64);
  SequenceRequest plain = Request(20, 3);
  plain.logprobs.reset();
  const auto sink = Run(engine, plain);
  EXPECT_TRUE(sink->prompt_logprobs().empty());
  for (const SelectedToken& token : sink->selected()) {
    EXPECT_EQ(token.logprob, 0);
    EXPECT_TRUE(token.alternatives.empty());
  }
}

// What a token's log probability was when it was sampled is what it has as part of a prompt.
TEST_F(LogprobsTest, OutputReadAgainAsPromptHasTheSameLogProbabilities) {
  const TestEngine engine = MakeEngine(*checkpoint_, 64);
  const auto sampled = Run(engine, Request(33, 40));
  SequenceRequest again = Request(33, 1);
  for (const std::uint32_t token : sampled->tokens()) {
    again.prompt.emplace_back(token);
  }
  again.prompt_logprobs = true;
  const auto echo = Run(engine, again);
  const std::vector<SelectedToken> prompt = echo->prompt_logprobs();
  ASSERT_EQ(prompt.size(), again.prompt.size() - 1);
  ExpectSame({prompt.begin() + 32, prompt.end()}, sampled->selected());
  for (const SelectedToken& token : prompt) {
    EXPECT_LT(token.logprob, 0);
    ASSERT_EQ(token.alternatives.size(), 3u);
    EXPECT_GE(token.alternatives[0].logprob, token.logprob);
  }
}

TEST_F(LogprobsTest, APromptOfOneTokenHasNoneOfItsOwn) {
  const TestEngine engine = MakeEngine(*checkpoint_, 64);
  SequenceRequest request = Request(1, 2);
  request.prompt_logprobs = true;
  const auto sink = Run(engine, request);
  EXPECT_TRUE(sink->prompt_logprobs().empty());
  EXPECT_EQ(sink->tokens().size(), 2u);
}

TEST_F(LogprobsTest, DoNotDependOnChunksOrBatchMates) {
  SequenceRequest request = Request(150, 5);
  request.prompt_logprobs = true;
  const TestEngine alone = MakeEngine(*checkpoint_, 64);
  const auto expected = Run(alone, request);
  ASSERT_EQ(expected->prompt_logprobs().size(), 149u);
  for (const int rows : {1, 7, 64}) {
    SCOPED_TRACE(rows);
    const TestEngine engine = MakeEngine(
        *checkpoint_, 128, {.max_batch_tokens = 48, .max_sequences = 8, .max_logprob_rows = rows});
    const auto mate = Start(engine, Request(90, 30));
    const auto other = Start(engine, request);
    const auto sink = Run(engine, request);
    EXPECT_TRUE(other->WaitForEnd().status.ok());
    EXPECT_TRUE(mate->WaitForEnd().status.ok());
    for (const auto& each : {sink, other}) {
      ExpectSame(each->prompt_logprobs(), expected->prompt_logprobs());
      ExpectSame(each->selected(), expected->selected());
    }
  }
}

}  // namespace
}  // namespace baton
