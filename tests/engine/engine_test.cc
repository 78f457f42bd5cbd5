#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>

#include "absl/synchronization/notification.h"
#include "tests/engine/engine_fixture.h"

namespace baton {
namespace {

using Tokens = std::vector<std::uint32_t>;

std::vector<TokenId> RandomPrompt(int length, std::uint32_t seed) {
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

SequenceRequest Seeded(std::vector<TokenId> prompt, int max_tokens, std::uint64_t seed) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 0.9f, .seed = seed},
          .max_tokens = max_tokens};
}

Tokens RunToEnd(const TestEngine& engine, SequenceRequest request) {
  auto sink = std::make_shared<CollectingSink>();
  request.sink = sink;
  const auto id = engine->Submit(std::move(request));
  EXPECT_TRUE(id.ok()) << id.status();
  const SequenceEnd end = sink->WaitForEnd();
  EXPECT_TRUE(end.status.ok()) << end.status;
  return sink->tokens();
}

class EngineTest : public testing::Test {
 protected:
  const std::unique_ptr<Checkpoint> checkpoint_ = OpenTinyModel();
};

TEST_F(EngineTest, StopsAtMaxTokensAndReturnsItsBlocks) {
  const TestEngine engine = MakeEngine(*checkpoint_, 64);
  EXPECT_EQ(RunToEnd(engine, Greedy(RandomPrompt(20, 1), 40)).size(), 40u);
  EXPECT_TRUE(engine.WaitUntilFree());
}

TEST_F(EngineTest, TokensDoNotDependOnHowThePromptIsCut) {
  const TestEngine whole = MakeEngine(*checkpoint_, 64);
  for (const int length : {1, 15, 16, 17, 33, 300}) {
    const Tokens expected = RunToEnd(whole, Greedy(RandomPrompt(length, 2), 24));
    for (const int chunk : {1, 7, 16, 64}) {
      const TestEngine cut =
          MakeEngine(*checkpoint_, 64, {.max_batch_tokens = chunk, .max_sequences = 1});
      EXPECT_EQ(RunToEnd(cut, Greedy(RandomPrompt(length, 2), 24)), expected)
          << length << " tokens in chunks of " << chunk;
    }
  }
}

// B27: what else is in the batch changes nothing, greedy or seeded.
TEST_F(EngineTest, TokensDoNotDependOnBatchMates) {
  const TestEngine alone = MakeEngine(*checkpoint_, 128);
  const TestEngine shared =
      MakeEngine(*checkpoint_, 512, {.max_batch_tokens = 48, .max_sequences = 16});
  std::vector<Tokens> expected;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (std::uint32_t i = 0; i < 12; ++i) {
    const int length = 1 + static_cast<int>(i * 23 % 150);
    const SequenceRequest request =
        i % 2 == 0 ? Greedy(RandomPrompt(length, i), 30) : Seeded(RandomPrompt(length, i), 30, i);
    expected.push_back(RunToEnd(alone, request));
    sinks.push_back(std::make_shared<CollectingSink>());
    SequenceRequest copy = request;
    copy.sink = sinks.back();
    ASSERT_TRUE(shared->Submit(std::move(copy)).ok());
    if (i % 4 == 3) {
      ASSERT_TRUE(sinks[i - 1]->WaitForTokens(3));  // the next ones join a running batch
    }
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_TRUE(sinks[i]->WaitForEnd().status.ok());
    EXPECT_EQ(sinks[i]->tokens(), expected[i]) << "sequence " << i;
  }
  EXPECT_TRUE(shared.WaitUntilFree());
}

// F26: more sequences than the pool holds; some are preempted and computed again, with the same
// tokens.
TEST_F(EngineTest, PreemptionChangesNoToken) {
  const TestEngine roomy = MakeEngine(*checkpoint_, 256);
  const TestEngine tight =
      MakeEngine(*checkpoint_, 11, {.max_batch_tokens = 64, .max_sequences = 8});
  std::vector<Tokens> expected;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (std::uint32_t i = 0; i < 5; ++i) {
    expected.push_back(RunToEnd(roomy, Seeded(RandomPrompt(20, i), 100, i)));
  }
  // All at once: with a run in between, one could be over before the next comes.
  for (std::uint32_t i = 0; i < 5; ++i) {
    SequenceRequest request = Seeded(RandomPrompt(20, i), 100, i);
    sinks.push_back(std::make_shared<CollectingSink>());
    request.sink = sinks.back();
    ASSERT_TRUE(tight->Submit(std::move(request)).ok());
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_TRUE(sinks[i]->WaitForEnd().status.ok());
    EXPECT_EQ(sinks[i]->tokens(), expected[i]) << "sequence " << i;
  }
  // 5 prompts of 20 tokens are 100 tokens; more were computed, so something was preempted.
  EXPECT_GT(tight->load().prefilled_tokens, 100u);
  EXPECT_TRUE(tight.WaitUntilFree());
}

TEST_F(EngineTest, StopTokensEndTheSequenceAndMinTokensHoldThemOff) {
  const TestEngine engine = MakeEngine(*checkpoint_, 64);
  const Tokens free_run = RunToEnd(engine, Greedy(RandomPrompt(10, 3), 20));
  SequenceRequest stopping = Greedy(RandomPrompt(10, 3), 20);
  stopping.stop_tokens = {TokenId(free_run[0])};

  EXPECT_EQ(RunToEnd(engine, stopping), Tokens{free_run[0]});

  stopping.min_tokens = 5;
  const Tokens held = RunToEnd(engine, stopping);
  ASSERT_GE(held.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NE(held[i], free_run[0]);
  }
}

TEST_F(EngineTest, RefusesWhatItCouldNeverRun) {
  const TestEngine engine = MakeEngine(*checkpoint_, 8);
  const auto code = [&engine](SequenceRequest request) {
    request.sink = std::make_shared<CollectingSink>();
    return engine->Submit(std::move(request)).status().code();
  };
  EXPECT_EQ(code(Greedy({}, 4)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Greedy(RandomPrompt(4, 1), 0)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Greedy(RandomPrompt(4000, 1), 97)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Greedy({TokenId(512)}, 4)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Greedy(RandomPrompt(100, 1), 29)), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RunToEnd(engine, Greedy(RandomPrompt(100, 1), 28)).size(), 28u);
}

TEST_F(EngineTest, CancellationAndDeadlinesFreeBlocksInEveryState) {
  const TestEngine engine =
      MakeEngine(*checkpoint_, 40, {.max_batch_tokens = 16, .max_sequences = 2});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<SequenceId> ids;
  for (std::uint32_t i = 0; i < 4; ++i) {  // two run, two wait
    SequenceRequest request = Greedy(RandomPrompt(50, i), 200);
    sinks.push_back(std::make_shared<CollectingSink>());
    request.sink = sinks.back();
    ids.push_back(*engine->Submit(std::move(request)));
  }
  ASSERT_TRUE(sinks[0]->WaitForTokens(2));
  for (const SequenceId id : ids) {
    engine->Cancel(id, absl::CancelledError("test"));
  }
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->WaitForEnd().status.code(), absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(engine.WaitUntilFree());

  SequenceRequest late = Greedy(RandomPrompt(50, 9), 200);
  late.deadline = Clock::System().Now();
  auto sink = std::make_shared<CollectingSink>();
  late.sink = sink;
  const std::uint64_t before = engine->load().prefilled_tokens;
  ASSERT_TRUE(engine->Submit(std::move(late)).ok());
  EXPECT_EQ(sink->WaitForEnd().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(engine->load().prefilled_tokens, before) << "F23: expired work is dropped unseen";
  EXPECT_TRUE(engine.WaitUntilFree());
}

TEST_F(EngineTest, AFullQueueRefusesAtOnce) {
  TestEngine engine{.backend = MakeBackend()};
  auto created = Engine::Create({.kv_pool_bytes = 1 << 22,
                                 .limits = {.max_batch_tokens = 16, .max_sequences = 1},
                                 .max_waiting = 2},
                                *checkpoint_, *engine.backend);
  ASSERT_TRUE(created.ok()) << created.status();
  engine.engine = *std::move(created);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    SequenceRequest request = Greedy(RandomPrompt(5, 1), 300);
    sinks.push_back(std::make_shared<CollectingSink>());
    request.sink = sinks.back();
    EXPECT_TRUE(engine->Submit(std::move(request)).ok());
  }
  SequenceRequest more = Greedy(RandomPrompt(5, 1), 5);
  more.sink = std::make_shared<CollectingSink>();
  EXPECT_EQ(engine->Submit(std::move(more)).status().code(), absl::StatusCode::kResourceExhausted);
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->WaitForEnd().status.ok());
  }
}

// A prompt prefilled in one engine and decoded in another: the blocks are copied by hand here.
class HandoffTest : public EngineTest {
 protected:
  // Prefills in source_; the blocks stay pinned in hooks.
  Tokens Prefill(const SequenceRequest& request, const std::shared_ptr<CollectingHooks>& hooks) {
    SequenceRequest prefill = request;
    prefill.kind = SequenceKind::kPrefillOnly;
    prefill.hooks = hooks;
    return RunToEnd(source_, std::move(prefill));
  }

  void CopyBlocks(const std::vector<BlockId>& from,
                  const std::vector<BlockId>& to,
                  int begin,
                  int end) {
    for (int i = begin; i < end; ++i) {
      const auto index = static_cast<std::size_t>(i);
      std::memcpy(target_.Block(to[index]), source_.Block(from[index]),
                  source_->identity().kv.block_bytes());
    }
  }

  const TestEngine single_ = MakeEngine(*checkpoint_, 128);
  const TestEngine source_ = MakeEngine(*checkpoint_, 128);
  const TestEngine target_ = MakeEngine(*checkpoint_, 128);
};

TEST_F(HandoffTest, AdoptedBlocksGiveTheSameTokens) {
  for (const int length : {1, 15, 16, 17, 31, 32, 300}) {
    SequenceRequest request = Seeded(RandomPrompt(length, 5), 20, 77);
    const Tokens expected = RunToEnd(single_, request);
    auto prefill_hooks = std::make_shared<CollectingHooks>();
    const Tokens first = Prefill(request, prefill_hooks);
    ASSERT_EQ(first, Tokens{expected[0]});

    auto sink = std::make_shared<CollectingSink>();
    auto import_hooks = std::make_shared<CollectingHooks>();
    request.kind = SequenceKind::kImport;
    request.sink = sink;
    request.hooks = import_hooks;
    const SequenceId id = *target_->Submit(request);
    const std::vector<BlockId> to = import_hooks->WaitForBlocks();
    CopyBlocks(prefill_hooks->WaitForBlocks(), to, 0, static_cast<int>(to.size()));
    import_hooks->DropPin();
    target_->GiveFirstToken(id, {.token = TokenId(first[0])});
    target_->Adopt(id);

    EXPECT_TRUE(sink->WaitForEnd().status.ok());
    EXPECT_EQ(sink->tokens(), expected) << length;
    prefill_hooks->DropPin();
  }
  EXPECT_EQ(target_->load().prefilled_tokens, 0u)
      << "T22: the split path computes no prompt token again";
  EXPECT_TRUE(source_.WaitUntilFree());
  EXPECT_TRUE(target_.WaitUntilFree());
}

// F1, T16: the source dies with k blocks landed, before or after the first token; the rest is
// computed here.
TEST_F(HandoffTest, ResumesLocallyFromAnyNumberOfLandedBlocks) {
  SequenceRequest request = Seeded(RandomPrompt(70, 6), 20, 3);
  const Tokens expected = RunToEnd(single_, request);
  auto prefill_hooks = std::make_shared<CollectingHooks>();
  Prefill(request, prefill_hooks);
  const std::vector<BlockId> from = prefill_hooks->WaitForBlocks();
  for (int landed = 0; landed <= 5; ++landed) {
    for (const bool first_token_known : {false, true}) {
      auto sink = std::make_shared<CollectingSink>();
      auto hooks = std::make_shared<CollectingHooks>();
      request.kind = SequenceKind::kImport;
      request.sink = sink;
      request.hooks = hooks;
      const SequenceId id = *target_->Submit(request);
      CopyBlocks(from, hooks->WaitForBlocks(), 0, landed);
      if (first_token_known) {
        target_->GiveFirstToken(id, {.token = TokenId(expected[0])});
      }
      target_->ResumeLocally(id, landed);
      EXPECT_TRUE(sink->WaitForEnd().status.ok());
      EXPECT_EQ(sink->tokens(), expected)
          << landed << " landed, first token known " << first_token_known;
      hooks->DropPin();
    }
  }
  prefill_hooks->DropPin();
  EXPECT_TRUE(target_.WaitUntilFree());
}

TEST_F(HandoffTest, ARenewedImportKeepsLandedBlocksAndReplacesTheOthers) {
  SequenceRequest request = Greedy(RandomPrompt(70, 6), 10);
  const Tokens expected = RunToEnd(single_, request);
  auto prefill_hooks = std::make_shared<CollectingHooks>();
  Prefill(request, prefill_hooks);
  const std::vector<BlockId> from = prefill_hooks->WaitForBlocks();
  auto sink = std::make_shared<CollectingSink>();
  auto hooks = std::make_shared<CollectingHooks>();
  request.kind = SequenceKind::kImport;
  request.sink = sink;
  request.hooks = hooks;
  const SequenceId id = *target_->Submit(request);
  const std::vector<BlockId> first_try = hooks->WaitForBlocks();
  CopyBlocks(from, first_try, 0, 2);

  // As a worker does: the pin of the first try is still held by its transport while new blocks are
  // leased.
  target_->RenewImport(id, 2);
  const std::vector<BlockId> second_try = hooks->WaitForBlocks(2);

  EXPECT_EQ(hooks->valid_blocks(), 2);
  ASSERT_EQ(second_try.size(), first_try.size());
  EXPECT_TRUE(std::equal(first_try.begin(), first_try.begin() + 2, second_try.begin()));
  CopyBlocks(from, second_try, 2, 5);
  target_->GiveFirstToken(id, {.token = TokenId(expected[0])});
  target_->Adopt(id);
  EXPECT_TRUE(sink->WaitForEnd().status.ok());
  EXPECT_EQ(sink->tokens(), expected);
  hooks->DropPin();
  prefill_hooks->DropPin();
  EXPECT_TRUE(target_.WaitUntilFree());
}

TEST_F(HandoffTest, EveryLayerOfEveryBlockIsReportedReadyOnce) {
  const TestEngine chunked =
      MakeEngine(*checkpoint_, 64, {.max_batch_tokens = 24, .max_sequences = 4});
  SequenceRequest request = Greedy(RandomPrompt(75, 8), 1);
  auto hooks = std::make_shared<CollectingHooks>();
  request.kind = SequenceKind::kPrefillOnly;
  request.hooks = hooks;
  RunToEnd(chunked, request);
  const std::vector<std::vector<int>> ready = hooks->ready();
  ASSERT_EQ(ready.size(), 5u);
  for (const std::vector<int>& layers : ready) {
    EXPECT_THAT(layers, testing::ElementsAre(0, 1));
  }
  EXPECT_EQ(hooks->WaitForBlocks().size(), 5u);
  EXPECT_LT(chunked->load().free_blocks, 64)
      << "the pin keeps the blocks after the sequence has ended";
  hooks->DropPin();
  EXPECT_TRUE(chunked.WaitUntilFree());
}

// Holds the engine up after the first layer of a prefill. Used from the engine's and the test's
// thread.
class HoldingHooks final : public HandoffHooks {
 public:
  void OnAdmitted(PinnedBlocks pin, int) override { pin_.emplace(std::move(pin)); }
  void OnLayerComputed(LayerIndex, int, int) override {
    if (layers_.fetch_add(1) == 0) {
      held_.Notify();
      let_go_.WaitForNotification();
    }
  }

  void WaitUntilHeld() { held_.WaitForNotification(); }
  void LetGo() { let_go_.Notify(); }
  int layers() const { return layers_.load(); }
  void DropPin() { pin_.reset(); }  // after the end of the sequence

 private:
  std::optional<PinnedBlocks> pin_;
  std::atomic<int> layers_{0};
  absl::Notification held_;
  absl::Notification let_go_;
};

// F21: what is left of a long step is not computed for a request that has gone.
TEST_F(HandoffTest, ACancellationStopsTheStepItLeavesEmpty) {
  auto sink = std::make_shared<CollectingSink>();
  auto hooks = std::make_shared<HoldingHooks>();
  SequenceRequest request = Greedy(RandomPrompt(16, 8), 1);
  request.kind = SequenceKind::kPrefillOnly;
  request.sink = sink;
  request.hooks = hooks;
  const SequenceId id = *source_->Submit(request);
  hooks->WaitUntilHeld();

  source_->Cancel(id, absl::CancelledError("test"));
  hooks->LetGo();

  EXPECT_EQ(sink->WaitForEnd().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(hooks->layers(), 1);
  EXPECT_EQ(sink->tokens(), Tokens{});
  hooks->DropPin();
  EXPECT_TRUE(source_.WaitUntilFree());
  EXPECT_EQ(source_->load().prefilled_tokens, 0u);
}

// B39, T09: the request lets go first; the blocks are not reused while the transport holds them.
TEST_F(HandoffTest, BlocksOfACancelledImportStayPinnedUntilTheTransportLetsGo) {
  auto sink = std::make_shared<CollectingSink>();
  auto hooks = std::make_shared<CollectingHooks>();
  SequenceRequest request = Greedy(RandomPrompt(70, 6), 10);
  request.kind = SequenceKind::kImport;
  request.sink = sink;
  request.hooks = hooks;
  const SequenceId id = *target_->Submit(request);
  const std::vector<BlockId> blocks = hooks->WaitForBlocks();
  target_->Cancel(id, absl::CancelledError("test"));
  EXPECT_EQ(sink->WaitForEnd().status.code(), absl::StatusCode::kCancelled);
  std::memset(target_.Block(blocks[0]), 0x5a, 64);

  RunToEnd(target_, Greedy(RandomPrompt(1900, 7), 10));  // uses every block that it can get

  EXPECT_EQ(target_.Block(blocks[0])[63], std::byte{0x5a});
  hooks->DropPin();
  EXPECT_TRUE(target_.WaitUntilFree());
}

TEST_F(HandoffTest, AFirstTokenThatEndsTheSequenceNeedsNoBlocks) {
  SequenceRequest request = Greedy(RandomPrompt(70, 6), 1);
  auto sink = std::make_shared<CollectingSink>();
  auto hooks = std::make_shared<CollectingHooks>();
  request.kind = SequenceKind::kImport;
  request.sink = sink;
  request.hooks = hooks;
  const SequenceId id = *target_->Submit(request);
  hooks->WaitForBlocks();
  hooks->DropPin();
  target_->GiveFirstToken(id, {.token = TokenId(9)});
  EXPECT_EQ(sink->WaitForEnd().reason, FinishReason::kLength);
  EXPECT_EQ(sink->tokens(), Tokens{9});
  EXPECT_TRUE(target_.WaitUntilFree());
}

}  // namespace
}  // namespace baton
