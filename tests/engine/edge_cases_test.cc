#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <ctime>
#include <random>

#include "tests/engine/engine_fixture.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

std::vector<TokenId> Prompt(int length, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> prompt;
  for (int i = 0; i < length; ++i) {
    prompt.emplace_back(3 + static_cast<std::uint32_t>(random() % 500));
  }
  return prompt;
}

SequenceRequest Greedy(std::vector<TokenId> prompt, int max_tokens) {
  return {.prompt = std::move(prompt), .sampling = {.temperature = 0}, .max_tokens = max_tokens};
}

std::shared_ptr<CollectingSink> Start(const TestEngine& engine,
                                      SequenceRequest request,
                                      SequenceId* id = nullptr) {
  auto sink = std::make_shared<CollectingSink>();
  request.sink = sink;
  const auto submitted = engine->Submit(std::move(request));
  EXPECT_TRUE(submitted.ok()) << submitted.status();
  if (id != nullptr) {
    *id = *submitted;
  }
  return sink;
}

std::vector<std::uint32_t> TokensOf(const TestEngine& engine, SequenceRequest request) {
  const auto sink = Start(engine, std::move(request));
  const SequenceEnd end = sink->WaitForEnd();
  EXPECT_TRUE(end.status.ok()) << end.status;
  return sink->tokens();
}

// Processor time of this thread: others use the machine too.
Duration ThreadTime() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

class EdgeCasesTest : public testing::Test {
 protected:
  const std::unique_ptr<Checkpoint> checkpoint_ = OpenTinyModel();
};

// T29, B21: the longest prompts, twice. What is left of the context is one token, and that comes.
TEST_F(EdgeCasesTest, ThePromptThatLeavesRoomForOneToken) {
  const int context = checkpoint_->config().context_tokens;
  const TestEngine cold = MakeEngine(*checkpoint_, context / kBlockTokens, {}, false);
  for (const int length : {context - 1, context - kBlockTokens}) {
    SCOPED_TRACE(length);
    const TestEngine engine = MakeEngine(*checkpoint_, context / kBlockTokens);
    const int room = context - length;
    const SequenceRequest request = Greedy(Prompt(length, 1), room);
    const std::vector<std::uint32_t> expected = TokensOf(cold, request);
    EXPECT_EQ(expected.size(), static_cast<std::size_t>(room));
    for (const int cached :
         {0, length % kBlockTokens == 0 ? length - 1 : length - length % kBlockTokens}) {
      const auto sink = Start(engine, request);
      const SequenceEnd end = sink->WaitForEnd();
      EXPECT_EQ(end.reason, FinishReason::kLength);
      EXPECT_EQ(end.cached_tokens, cached);
      EXPECT_EQ(sink->tokens(), expected);
    }
    EXPECT_TRUE(engine.WaitUntilFree());
  }
}

// T08: no slack in the pool, and a transport that is slow to read. Its blocks are in the cache, and
// all the same nobody else gets them; who needs them waits.
TEST_F(EdgeCasesTest, WhatATransportStillReadsIsNotGivenUp) {
  const TestEngine engine = MakeEngine(*checkpoint_, 12);
  auto hooks = std::make_shared<CollectingHooks>();
  SequenceRequest prefill = Greedy(Prompt(80, 1), 1);
  prefill.kind = SequenceKind::kPrefillOnly;
  prefill.hooks = hooks;
  TokensOf(engine, prefill);
  const std::vector<BlockId> blocks = hooks->WaitForBlocks();
  const std::size_t block_bytes = engine->identity().kv.block_bytes();
  std::vector<std::vector<std::byte>> sent;
  for (const BlockId block : blocks) {
    sent.emplace_back(engine.Block(block), engine.Block(block) + block_bytes);
  }

  for (std::uint32_t seed = 2; seed < 6; ++seed) {
    TokensOf(engine, Greedy(Prompt(90, seed), 6));  // all the blocks that are left
  }
  const auto large = Start(engine, Greedy(Prompt(150, 9), 4));
  EXPECT_TRUE(WaitUntil([&] { return engine->load().waiting == 1; }));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(std::memcmp(engine.Block(blocks[i]), sent[i].data(), block_bytes), 0) << i;
  }
  EXPECT_EQ(large->tokens().size(), 0u);

  hooks->DropPin();
  EXPECT_TRUE(large->WaitForEnd().status.ok());
  EXPECT_TRUE(engine.WaitUntilFree());
}

// T27: imports take the pool as far as admission lets them, and all lose their sources at once: to
// go on each needs more than there is.
TEST_F(EdgeCasesTest, ImportsThatFillThePoolAllGoOn) {
  const TestEngine roomy = MakeEngine(*checkpoint_, 64);
  // One block stays over for each that is admitted before: 3 + 3 + 1 and 3 + 2 of 9.
  const TestEngine engine = MakeEngine(*checkpoint_, 9, {.max_sequences = 4});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<std::vector<std::uint32_t>> expected;
  std::vector<SequenceId> ids;
  std::vector<std::shared_ptr<CollectingHooks>> hooks;
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    SequenceRequest request = Greedy(Prompt(seed == 2 ? 16 : 48, seed), 60);
    expected.push_back(TokensOf(roomy, request));
    request.kind = SequenceKind::kImport;
    hooks.push_back(std::make_shared<CollectingHooks>());
    request.hooks = hooks.back();
    sinks.push_back(Start(engine, request, &ids.emplace_back()));
    hooks.back()->WaitForBlocks();
  }
  EXPECT_TRUE(WaitUntil([&] { return engine->load().running == 3; }));

  for (std::size_t i = 0; i < ids.size(); ++i) {
    engine->ResumeLocally(ids[i], 0);
    hooks[i]->DropPin();
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_TRUE(sinks[i]->WaitForEnd().status.ok());
    EXPECT_EQ(sinks[i]->tokens(), expected[i]);
  }
  EXPECT_TRUE(engine.WaitUntilFree());
}

// F26, T45: sequences that share the beginning of their prompts and all need a block at the same
// step, in a pool that is too small. Who is preempted gives up only what nobody else holds.
TEST_F(EdgeCasesTest, PreemptionAmongSequencesThatShareBlocks) {
  const TestEngine cold = MakeEngine(*checkpoint_, 64, {}, false);
  const TestEngine engine = MakeEngine(*checkpoint_, 10);
  TokensOf(engine, Greedy(Prompt(48, 1), 1));  // three blocks that all will share
  std::vector<SequenceRequest> requests;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (std::uint32_t i = 0; i < 4; ++i) {
    requests.push_back(Greedy(Prompt(48, 1), 60));
    requests.back().prompt.emplace_back(10 + i);
    sinks.push_back(Start(engine, requests.back()));
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_TRUE(sinks[i]->WaitForEnd().status.ok());
    EXPECT_EQ(sinks[i]->tokens(), TokensOf(cold, requests[i])) << i;
  }
  EXPECT_TRUE(engine.WaitUntilFree());
}

// T27: one that runs and needs a block, and an import that has lost its source, keeps what has
// landed and waits for room, cannot hold each other up.
TEST_F(EdgeCasesTest, ARenewedImportAndTheLastOneThatRunsDoNotHoldEachOtherUp) {
  const TestEngine roomy = MakeEngine(*checkpoint_, 64);
  const TestEngine engine = MakeEngine(*checkpoint_, 6);
  SequenceRequest import = Greedy(Prompt(48, 2), 4);
  const std::vector<std::uint32_t> expected = TokensOf(roomy, import);
  auto hooks = std::make_shared<CollectingHooks>();
  import.kind = SequenceKind::kImport;
  import.hooks = hooks;
  SequenceId id;
  const auto importing = Start(engine, import, &id);
  hooks->WaitForBlocks();
  const SequenceRequest runs = Greedy(Prompt(32, 1), 60);  // six blocks in the end
  const auto running = Start(engine, runs);
  ASSERT_TRUE(running->WaitForTokens(16)) << "three blocks are all there is";

  engine->RenewImport(id, 3);
  hooks->DropPin();

  hooks->WaitForBlocks(2);
  engine->ResumeLocally(id, 0);
  hooks->DropPin();
  EXPECT_TRUE(importing->WaitForEnd().status.ok());
  EXPECT_EQ(importing->tokens(), expected);
  EXPECT_TRUE(running->WaitForEnd().status.ok());
  EXPECT_EQ(running->tokens(), TokensOf(roomy, runs));
  EXPECT_TRUE(engine.WaitUntilFree());
}

// T42, B32: ten times what the queue takes, at once. Those above it are refused on the spot, those
// below it are served, and when the burst is over the next one is too.
TEST_F(EdgeCasesTest, ABurstIsServedAsFarAsTheQueueGoesAndRefusedBeyond) {
  constexpr std::size_t kCapacity = 8;  // 6 that wait, 2 that run
  TestEngine engine{.backend = MakeBackend()};
  auto created = Engine::Create({.kv_pool_bytes = 1 << 22,
                                 .limits = {.max_batch_tokens = 32, .max_sequences = 2},
                                 .max_waiting = 6},
                                *checkpoint_, *engine.backend);
  ASSERT_TRUE(created.ok()) << created.status();
  engine.engine = *std::move(created);
  std::vector<std::shared_ptr<CollectingSink>> accepted;
  int refused = 0;
  for (std::uint32_t i = 0; i < 10 * kCapacity; ++i) {
    SequenceRequest request = Greedy(Prompt(200, i), 400);
    auto sink = std::make_shared<CollectingSink>();
    request.sink = sink;
    const Duration start = ThreadTime();
    const auto id = engine->Submit(std::move(request));
    if (id.ok()) {
      accepted.push_back(sink);
      continue;
    }
    EXPECT_LT(ThreadTime() - start, std::chrono::milliseconds(50));
    EXPECT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted) << id.status();
    ++refused;
  }
  EXPECT_GE(accepted.size(), kCapacity);
  EXPECT_GT(refused, 0);
  for (const auto& sink : accepted) {
    EXPECT_TRUE(sink->WaitForEnd().status.ok());
    EXPECT_EQ(sink->tokens().size(), 400u);
  }
  EXPECT_EQ(TokensOf(engine, Greedy(Prompt(20, 1), 3)).size(), 3u);
  EXPECT_TRUE(engine.WaitUntilFree());
}

// T07: four times the pool is asked for and cancelled; all of it is back with no new request.
TEST_F(EdgeCasesTest, CancelledRequestsGiveTheirBlocksBackByThemselves) {
  const TestEngine engine = MakeEngine(*checkpoint_, 16);
  std::vector<SequenceId> ids;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (std::uint32_t i = 0; i < 8; ++i) {  // of 8 blocks each, output included
    sinks.push_back(Start(engine, Greedy(Prompt(64, i), 64), &ids.emplace_back()));
  }
  ASSERT_TRUE(sinks[0]->WaitForTokens(1));
  for (const SequenceId id : ids) {
    engine->Cancel(id, absl::CancelledError("test"));
  }
  EXPECT_TRUE(engine.WaitUntilFree());
  for (const auto& sink : sinks) {
    sink->WaitForEnd();
  }
}

// B29: nothing of a log probability is NaN or infinite, though all but one token are ruled out.
TEST_F(EdgeCasesTest, LogProbabilitiesAreFinite) {
  const TestEngine engine = MakeEngine(*checkpoint_, 64);
  SequenceRequest request{.prompt = Prompt(40, 1),
                          .sampling = {.top_k = 1},
                          .max_tokens = 10,
                          .logprobs = 20,
                          .prompt_logprobs = true};
  const auto sink = Start(engine, request);
  EXPECT_TRUE(sink->WaitForEnd().status.ok());
  ASSERT_EQ(sink->prompt_logprobs().size(), 39u);
  ASSERT_EQ(sink->selected().size(), 10u);
  for (const auto& part : {sink->prompt_logprobs(), sink->selected()}) {
    for (const SelectedToken& token : part) {
      EXPECT_TRUE(std::isfinite(token.logprob) && token.logprob <= 0) << token.logprob;
      ASSERT_EQ(token.alternatives.size(), 20u);
      for (const TokenLogprob& alternative : token.alternatives) {
        EXPECT_TRUE(std::isfinite(alternative.logprob) && alternative.logprob <= 0);
      }
    }
  }
}

// B25: a temperature near zero is greedy, not an overflow.
TEST_F(EdgeCasesTest, TinyTemperaturesAreGreedy) {
  const TestEngine engine = MakeEngine(*checkpoint_, 64);
  const std::vector<std::uint32_t> expected = TokensOf(engine, Greedy(Prompt(40, 3), 20));
  for (const float temperature : {1e-10f, 1e-38f, 1e-45f}) {
    SequenceRequest request = Greedy(Prompt(40, 3), 20);
    request.sampling = {.temperature = temperature, .seed = 4};
    EXPECT_EQ(TokensOf(engine, request), expected) << temperature;
  }
}

}  // namespace
}  // namespace baton
