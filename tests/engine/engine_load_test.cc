// What an engine says of its load and of its prefix cache while it runs.
#include <gtest/gtest.h>

#include <set>

#include "absl/synchronization/notification.h"
#include "tests/engine/engine_fixture.h"

namespace baton {
namespace {

std::vector<TokenId> Prompt(int length) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < length; ++i) {
    prompt.emplace_back(3 + static_cast<std::uint32_t>(i * 7 % 450));
  }
  return prompt;
}

// Holds the engine's thread at chosen tokens until it is let on.
class GatedSink final : public TokenSink {
 public:
  void OnToken(const SelectedToken&) override {
    ++tokens_;
    if (tokens_ == 2) {
      Wait(at_second_, go_on_second_);
    } else if (tokens_ == 5) {
      Wait(at_fifth_, go_on_fifth_);
    }
  }
  void OnEnd(const SequenceEnd&) override {}

  absl::Notification at_second_, go_on_second_, at_fifth_, go_on_fifth_;

 private:
  static void Wait(absl::Notification& here, absl::Notification& go_on) {
    here.Notify();
    EXPECT_TRUE(go_on.WaitForNotificationWithTimeout(absl::Seconds(60)));
  }

  int tokens_ = 0;
};

TEST(EngineLoad, TellsWhatIsStillToBeComputedAndWhatDecodes) {
  const std::unique_ptr<Checkpoint> checkpoint = OpenTinyModel();
  const TestEngine engine = MakeEngine(*checkpoint, 8);
  const auto first = std::make_shared<GatedSink>();
  ASSERT_TRUE(engine->Submit({.prompt = Prompt(64), .max_tokens = 30, .sink = first}).ok());
  ASSERT_TRUE(first->at_second_.WaitForNotificationWithTimeout(absl::Seconds(60)));
  // It finds the first 64 tokens, and there is no room for the rest: it waits.
  const auto second = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine->Submit({.prompt = Prompt(100), .max_tokens = 1, .sink = second}).ok());
  // Another tenant's prompt finds nothing.
  const auto third = std::make_shared<CollectingSink>();
  ASSERT_TRUE(
      engine->Submit({.prompt = Prompt(50), .max_tokens = 1, .cache_salt = "b", .sink = third})
          .ok());
  first->go_on_second_.Notify();
  ASSERT_TRUE(first->at_fifth_.WaitForNotificationWithTimeout(absl::Seconds(60)));
  const EngineLoad load = engine->load();  // as it was when the step of the fifth token began
  first->go_on_fifth_.Notify();

  EXPECT_EQ(load.running, 1);
  EXPECT_EQ(load.waiting, 2);
  EXPECT_EQ(load.decoding, 1);
  EXPECT_EQ(load.decoding_context_tokens, 64u + 4);
  EXPECT_EQ(load.queued_prefill_tokens, 100u - 64 + 50);
  second->WaitForEnd();
  third->WaitForEnd();
  EXPECT_TRUE(engine.WaitUntilFree());
  EXPECT_EQ(engine->load().decoding, 0);
  EXPECT_EQ(engine->load().decoding_context_tokens, 0u);
  EXPECT_EQ(engine->load().queued_prefill_tokens, 0u);
}

// Guarded by the engine: it is read when nothing runs any more.
class HeldHashes final : public CacheObserver {
 public:
  void OnStored(const PrefixHash& hash) override { EXPECT_TRUE(held_.insert(hash).second); }
  void OnRemoved(const PrefixHash& hash) override {
    EXPECT_EQ(held_.erase(hash), 1u);
    ++removed_;
  }
  const std::set<PrefixHash>& held() const { return held_; }
  int removed() const { return removed_; }

 private:
  std::set<PrefixHash> held_;
  int removed_ = 0;
};

// T58: the hashes are those that a router computes from the tokens, whatever the process.
TEST(EngineLoad, TheCacheObserverKnowsWhatAPromptMayFind) {
  const std::unique_ptr<Checkpoint> checkpoint = OpenTinyModel();
  HeldHashes heard;
  {
    const std::unique_ptr<Backend> backend = MakeBackend();
    const ModelConfig& config = checkpoint->config();
    const KvLayout layout = backend->LayoutFor(config.layers, config.kv_heads, config.head_dim);
    auto engine =
        Engine::Create({.kv_pool_bytes = 8 * layout.block_bytes(), .cache_observer = &heard},
                       *checkpoint, *backend);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const auto run = [&](std::vector<TokenId> prompt, std::string zone) {
      const auto sink = std::make_shared<CollectingSink>();
      ASSERT_TRUE((*engine)
                      ->Submit({.prompt = std::move(prompt),
                                .max_tokens = 1,
                                .zone = std::move(zone),
                                .sink = sink})
                      .ok());
      EXPECT_TRUE(sink->WaitForEnd().status.ok());
    };
    run(Prompt(70), "eu");   // four full blocks
    run(Prompt(70), "us");   // room for both
    run(Prompt(100), "us");  // the oldest make way
    EXPECT_TRUE(WaitUntilFree(**engine));
  }
  const std::vector<PrefixHash> expected =
      HashBlocks(RootHash({.model_fingerprint = checkpoint->fingerprint(),
                           .tokenizer_fingerprint = checkpoint->tokenizer().fingerprint(),
                           .zone = "us"}),
                 Prompt(96));
  for (const PrefixHash& hash : expected) {
    EXPECT_TRUE(heard.held().contains(hash)) << hash.ToString();
  }
  EXPECT_GT(heard.removed(), 0);
  EXPECT_LE(heard.held().size(), 8u);
}

}  // namespace
}  // namespace baton
