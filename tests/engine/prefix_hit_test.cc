#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/engine/engine_fixture.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

using Tokens = std::vector<std::uint32_t>;

std::vector<TokenId> Prompt(int length, std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<TokenId> prompt;
  for (int i = 0; i < length; ++i) {
    prompt.emplace_back(3 + static_cast<std::uint32_t>(random() % 500));
  }
  return prompt;
}

std::vector<TokenId> Joined(std::vector<TokenId> prompt, const Tokens& more) {
  for (const std::uint32_t token : more) {
    prompt.emplace_back(token);
  }
  return prompt;
}

struct Outcome {
  Tokens tokens;
  int cached_tokens = 0;
};

class PrefixHitTest : public testing::Test {
 protected:
  static SequenceRequest Request(std::vector<TokenId> prompt, int max_tokens = 12) {
    return {.prompt = std::move(prompt),
            .sampling = {.temperature = 0.8f, .seed = 5},
            .max_tokens = max_tokens};
  }
  static std::shared_ptr<CollectingSink> Start(const TestEngine& engine,
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
  static Outcome Finish(CollectingSink& sink) {
    const SequenceEnd end = sink.WaitForEnd();
    EXPECT_TRUE(end.status.ok()) << end.status;
    return {sink.tokens(), end.cached_tokens};
  }
  static Outcome Run(const TestEngine& engine, SequenceRequest request) {
    return Finish(*Start(engine, std::move(request)));
  }
  // All blocks are back and so many prompt tokens were computed since the start.
  static void ExpectPrefilled(const TestEngine& engine, int tokens) {
    // The engine publishes its load after the sinks have heard of the end.
    EXPECT_TRUE(WaitUntil([&] {
      const EngineLoad load = engine->load();
      return load.prefilled_tokens >= static_cast<std::uint64_t>(tokens) &&
             load.free_blocks == load.total_blocks;
    }));
    EXPECT_EQ(engine->load().prefilled_tokens, static_cast<std::uint64_t>(tokens));
  }
  TestEngine WithoutCache() const { return MakeEngine(*checkpoint_, 256, {}, false); }

  const std::unique_ptr<Checkpoint> checkpoint_ = OpenTinyModel();
};

// T15, T23: all of the prompt is known, and the one token that is left is computed right.
TEST_F(PrefixHitTest, TheSamePromptTwiceGivesTheSameTokensAndComputesTheTailOnly) {
  const TestEngine cold = WithoutCache();
  for (const int length : {1, 15, 16, 17, 31, 32, 33, 160, 161, 300}) {
    SCOPED_TRACE(length);
    const TestEngine engine = MakeEngine(*checkpoint_, 64);
    const Tokens expected = Run(cold, Request(Prompt(length))).tokens;
    const Outcome first = Run(engine, Request(Prompt(length), 1));
    EXPECT_EQ(first.cached_tokens, 0);
    const Outcome second = Run(engine, Request(Prompt(length)));
    EXPECT_EQ(second.tokens, expected);
    const int cached = length % 16 == 0 ? length - 1 : length / 16 * 16;
    EXPECT_EQ(second.cached_tokens, cached);
    ExpectPrefilled(engine, length + length - cached);
  }
}

// The block that a whole hit writes its last token to is its own: the others still read theirs.
TEST_F(PrefixHitTest, ManyWholeHitsAtOnceDoNotDisturbEachOther) {
  const TestEngine cold = WithoutCache();
  const TestEngine engine = MakeEngine(*checkpoint_, 128);
  Run(engine, Request(Prompt(64), 1));
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<Tokens> expected;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SequenceRequest request = Request(Prompt(64), 40);
    request.sampling.seed = seed;
    expected.push_back(Run(cold, request).tokens);
    sinks.push_back(Start(engine, request));
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    const Outcome outcome = Finish(*sinks[i]);
    EXPECT_EQ(outcome.tokens, expected[i]);
    EXPECT_EQ(outcome.cached_tokens, 63);
  }
  EXPECT_TRUE(engine.WaitUntilFree());
}

// Multi-turn chat: blocks written by decode are found by the next turn.
TEST_F(PrefixHitTest, ATurnFindsTheOutputOfTheOneBefore) {
  const TestEngine cold = WithoutCache();
  const TestEngine engine = MakeEngine(*checkpoint_, 128);
  std::vector<TokenId> history = Prompt(20);
  for (int turn = 0; turn < 4; ++turn) {
    SCOPED_TRACE(turn);
    const Outcome outcome = Run(engine, Request(history, 37));
    EXPECT_EQ(outcome.tokens, Run(cold, Request(history, 37)).tokens);
    // The last token of the turn before was sampled and never computed.
    const int known = turn == 0 ? 0 : static_cast<int>(history.size()) - 7 - 1;
    EXPECT_EQ(outcome.cached_tokens, known / 16 * 16);
    history = Joined(std::move(history), outcome.tokens);
    history = Joined(std::move(history), {9, 8, 7, 6, 5, 4, 3});
  }
}

TEST_F(PrefixHitTest, SaltsKeepTenantsApart) {
  const TestEngine engine = MakeEngine(*checkpoint_, 64);
  SequenceRequest request = Request(Prompt(64));
  request.cache_salt = "a";
  Run(engine, request);
  EXPECT_GT(Run(engine, request).cached_tokens, 0);
  request.cache_salt = "b";
  EXPECT_EQ(Run(engine, request).cached_tokens, 0);
  request.cache_salt.clear();
  EXPECT_EQ(Run(engine, request).cached_tokens, 0);
}

TEST_F(PrefixHitTest, ZonesKeepCachesApart) {
  const TestEngine engine = MakeEngine(*checkpoint_, 64);
  SequenceRequest request = Request(Prompt(64));
  request.zone = "eu";
  Run(engine, request);
  EXPECT_GT(Run(engine, request).cached_tokens, 0);
  request.zone = "us";
  EXPECT_EQ(Run(engine, request).cached_tokens, 0);
  request.cache_salt = "eu";
  request.zone.clear();
  EXPECT_EQ(Run(engine, request).cached_tokens, 0);
}

TEST_F(PrefixHitTest, SwitchedOffNothingIsFound) {
  const TestEngine engine = WithoutCache();
  Run(engine, Request(Prompt(64)));
  EXPECT_EQ(Run(engine, Request(Prompt(64))).cached_tokens, 0);
  EXPECT_EQ(engine->load().cached_blocks, 0);
}

// B62: log probabilities of a prompt come from computing all of it.
TEST_F(PrefixHitTest, PromptLogprobsAreTheSameColdAndWarm) {
  const TestEngine engine = MakeEngine(*checkpoint_, 64);
  SequenceRequest request = Request(Prompt(64), 1);
  request.logprobs = 2;
  request.prompt_logprobs = true;
  const auto cold = Start(engine, request);
  Finish(*cold);
  const auto warm = Start(engine, request);
  EXPECT_EQ(Finish(*warm).cached_tokens, 0);
  ASSERT_EQ(warm->prompt_logprobs().size(), 63u);
  for (std::size_t i = 0; i < 63; ++i) {
    EXPECT_EQ(warm->prompt_logprobs()[i].logprob, cold->prompt_logprobs()[i].logprob);
  }
}

// F27: one prefill for a herd of equal prompts.
TEST_F(PrefixHitTest, AHerdOfEqualPromptsIsComputedOnce) {
  const TestEngine cold = WithoutCache();
  const TestEngine engine =
      MakeEngine(*checkpoint_, 256, {.max_batch_tokens = 64, .max_sequences = 32});
  const Tokens expected = Run(cold, Request(Prompt(200), 5)).tokens;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 30; ++i) {
    sinks.push_back(Start(engine, Request(Prompt(200), 5)));
  }
  for (const auto& sink : sinks) {
    EXPECT_EQ(Finish(*sink).tokens, expected);
  }
  // Whole blocks once; the 8 tokens of the part-filled one by each.
  ExpectPrefilled(engine, 192 + 30 * 8);
}

// A pool with room for one prompt: what is cached makes way, and nothing is wrong or lost.
TEST_F(PrefixHitTest, CachedBlocksMakeWayForWhoeverNeedsThem) {
  const TestEngine cold = WithoutCache();
  const TestEngine engine = MakeEngine(*checkpoint_, 12, {.max_batch_tokens = 64});
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t seed = 0; seed < 5; ++seed) {
      const int length = 40 + static_cast<int>(seed) * 25;
      EXPECT_EQ(Run(engine, Request(Prompt(length, seed))).tokens,
                Run(cold, Request(Prompt(length, seed))).tokens);
    }
  }
  EXPECT_TRUE(engine.WaitUntilFree());
}

TEST_F(PrefixHitTest, APreemptedSequenceFindsItsOwnBlocksAgain) {
  const TestEngine cold = WithoutCache();
  const TestEngine tight =
      MakeEngine(*checkpoint_, 14, {.max_batch_tokens = 64, .max_sequences = 8});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (std::uint32_t i = 0; i < 4; ++i) {
    sinks.push_back(Start(tight, Request(Prompt(40, i), 70)));
  }
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Finish(*sinks[i]).tokens, Run(cold, Request(Prompt(40, i), 70)).tokens);
  }
  EXPECT_TRUE(tight.WaitUntilFree());
}

// n > 1: the prompt is computed once, the part-filled block is copied.
TEST_F(PrefixHitTest, ForksShareThePromptOfTheirLeader) {
  for (const bool cache : {true, false}) {
    for (const int length : {1, 16, 33, 100}) {
      SCOPED_TRACE(length);
      const TestEngine cold = WithoutCache();
      const TestEngine engine = MakeEngine(*checkpoint_, 128, {}, cache);
      SequenceId leader;
      std::vector<std::shared_ptr<CollectingSink>> sinks = {
          Start(engine, Request(Prompt(length), 50), &leader)};
      for (std::uint64_t i = 1; i < 5; ++i) {
        SequenceRequest request = Request(Prompt(length), 50);
        request.sampling.seed = 100 + i;
        request.fork_of = leader;
        sinks.push_back(Start(engine, request));
      }
      for (std::size_t i = 0; i < sinks.size(); ++i) {
        SequenceRequest alone = Request(Prompt(length), 50);
        alone.sampling.seed = i == 0 ? alone.sampling.seed : 100 + i;
        EXPECT_EQ(Finish(*sinks[i]).tokens, Run(cold, alone).tokens) << "choice " << i;
      }
      ExpectPrefilled(engine, length + 4);
    }
  }
}

TEST_F(PrefixHitTest, AForkWhoseLeaderHasEndedComputesByItself) {
  const TestEngine cold = WithoutCache();
  const TestEngine engine = MakeEngine(*checkpoint_, 64, {}, false);
  SequenceId leader;
  const auto first = Start(engine, Request(Prompt(40), 1), &leader);
  Finish(*first);
  SequenceRequest fork = Request(Prompt(40));
  fork.fork_of = leader;
  EXPECT_EQ(Run(engine, fork).tokens, Run(cold, Request(Prompt(40))).tokens);

  const auto cancelled = Start(engine, Request(Prompt(300, 2), 500), &leader);
  fork = Request(Prompt(300, 2));
  fork.fork_of = leader;
  const auto follower = Start(engine, fork);
  engine->Cancel(leader, absl::CancelledError("test"));
  EXPECT_EQ(Finish(*follower).tokens, Run(cold, Request(Prompt(300, 2))).tokens);
  EXPECT_TRUE(engine.WaitUntilFree());
}

// B42 with n > 1: the leader's one token is there before its KV, and the forks still get that. When
// the source fails they compute by themselves.
TEST_F(PrefixHitTest, AnImportOfOneTokenBringsItsForksTheKv) {
  const TestEngine cold = WithoutCache();
  const std::vector<TokenId> prompt = Prompt(85);
  const TestEngine source = MakeEngine(*checkpoint_, 64);
  auto source_hooks = std::make_shared<CollectingHooks>();
  SequenceRequest prefill = Request(prompt, 1);
  prefill.kind = SequenceKind::kPrefillOnly;
  prefill.hooks = source_hooks;
  const TokenId first_token(Run(source, prefill).tokens[0]);
  const std::vector<BlockId> from = source_hooks->WaitForBlocks();

  for (const bool lands : {true, false}) {
    SCOPED_TRACE(lands);
    const TestEngine engine = MakeEngine(*checkpoint_, 64);
    auto hooks = std::make_shared<CollectingHooks>();
    SequenceRequest import = Request(prompt, 1);
    import.kind = SequenceKind::kImport;
    import.hooks = hooks;
    SequenceId id;
    const auto leader = Start(engine, import, &id);
    SequenceRequest fork = Request(prompt, 1);
    fork.fork_of = id;
    fork.sampling.seed = 77;
    const auto follower = Start(engine, fork);
    const std::vector<BlockId> to = hooks->WaitForBlocks();
    ASSERT_EQ(to.size(), from.size());
    engine->GiveFirstToken(id, {.token = first_token});
    ASSERT_TRUE(leader->WaitForTokens(1)) << "at once";
    if (lands) {
      for (std::size_t i = 0; i < to.size(); ++i) {
        std::memcpy(engine.Block(to[i]), source.Block(from[i]),
                    engine->identity().kv.block_bytes());
      }
      engine->Adopt(id);
    } else {
      engine->ResumeLocally(id, 0);
    }

    EXPECT_EQ(Finish(*leader).tokens, Tokens{first_token.value()});
    fork.fork_of.reset();
    EXPECT_EQ(Finish(*follower).tokens, Run(cold, fork).tokens);
    hooks->DropPin();
    ExpectPrefilled(engine, lands ? 85 % kBlockTokens : 85);
  }
  source_hooks->DropPin();
}

// T16, B45: the decode side has the first k blocks already; only the others are asked for.
TEST_F(PrefixHitTest, AnImportIsToldWhatIsHereAlready) {
  const TestEngine cold = WithoutCache();
  const std::vector<TokenId> prompt = Prompt(80);
  const Tokens expected = Run(cold, Request(prompt)).tokens;
  // The KV as a prefill worker computes it.
  const TestEngine source = MakeEngine(*checkpoint_, 64);
  auto source_hooks = std::make_shared<CollectingHooks>();
  SequenceRequest prefill = Request(prompt, 12);
  prefill.kind = SequenceKind::kPrefillOnly;
  prefill.hooks = source_hooks;
  const auto first_token = Start(source, prefill);
  Finish(*first_token);
  const std::vector<BlockId> from = source_hooks->WaitForBlocks();
  ASSERT_EQ(from.size(), 5u);

  for (int k = 0; k <= 5; ++k) {
    SCOPED_TRACE(k);
    const TestEngine engine = MakeEngine(*checkpoint_, 64);
    if (k > 0) {
      Run(engine, Request({prompt.begin(), prompt.begin() + k * 16}, 1));
    }
    auto hooks = std::make_shared<CollectingHooks>();
    SequenceRequest import = Request(prompt);
    import.kind = SequenceKind::kImport;
    import.hooks = hooks;
    SequenceId id;
    const auto sink = Start(engine, import, &id);
    const std::vector<BlockId> to = hooks->WaitForBlocks();
    ASSERT_EQ(to.size(), 5u);
    // The last block is never shared: the handoff or the engine writes to it.
    ASSERT_EQ(hooks->valid_blocks(), std::min(k, 4));
    for (std::size_t i = static_cast<std::size_t>(hooks->valid_blocks()); i < to.size(); ++i) {
      std::memcpy(engine.Block(to[i]), source.Block(from[i]), engine->identity().kv.block_bytes());
    }
    engine->GiveFirstToken(id, {.token = TokenId(first_token->tokens()[0])});
    engine->Adopt(id);
    EXPECT_EQ(Finish(*sink).tokens, expected);
    hooks->DropPin();
    // What came by handoff is found by the next prompt.
    const Outcome again = Run(engine, Request(prompt));
    EXPECT_EQ(again.tokens, expected);
    EXPECT_EQ(again.cached_tokens, 79);
    EXPECT_TRUE(engine.WaitUntilFree());
  }
  source_hooks->DropPin();
}

// On the prefill side cached blocks are final from the start, and the others are reported as they
// are computed.
TEST_F(PrefixHitTest, APrefillForAHandoffReportsEachBlockOnceOrAsHereAlready) {
  for (const int length : {64, 70, 80}) {
    SCOPED_TRACE(length);
    const TestEngine engine = MakeEngine(*checkpoint_, 64, {.max_batch_tokens = 16});
    Run(engine, Request(Prompt(64), 1));
    auto hooks = std::make_shared<CollectingHooks>();
    SequenceRequest prefill = Request(Prompt(length));
    prefill.kind = SequenceKind::kPrefillOnly;
    prefill.hooks = hooks;
    Run(engine, prefill);
    EXPECT_EQ(hooks->valid_blocks(), length == 64 ? 3 : 4);
    const std::vector<std::vector<int>> ready = hooks->ready();
    ASSERT_EQ(ready.size(), static_cast<std::size_t>(BlocksForTokens(length)));
    for (std::size_t block = 0; block < ready.size(); ++block) {
      const bool computed = static_cast<int>(block) >= hooks->valid_blocks();
      EXPECT_EQ(ready[block].size(),
                computed ? static_cast<std::size_t>(checkpoint_->config().layers) : 0u)
          << "block " << block;
    }
    hooks->DropPin();
    EXPECT_TRUE(engine.WaitUntilFree());
  }
}

}  // namespace
}  // namespace baton
