// What a request is answered depends on the request alone: on the real model, down to the last bit
// of every log probability. engine_test and prefix_hit_test show the same on the tiny model with
// many more sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/real_model.h"
#include "tests/support/prompts.h"

namespace baton {
namespace {

constexpr std::array kPromptTokens = {1,  5,  15,  16,  17,  31,  32,  33,
                                      60, 90, 129, 160, 200, 256, 300, 421};
constexpr int kRequests = static_cast<int>(kPromptTokens.size());
constexpr int kOutputTokens = 16;

struct Outcome {
  std::vector<SelectedToken> prompt;
  std::vector<SelectedToken> output;
  int cached_tokens = 0;
};

// A token and its log probabilities, as bits.
std::string Spell(const SelectedToken& selected) {
  const auto bits = [](float value) { return absl::Hex(std::bit_cast<std::uint32_t>(value)); };
  std::string text = absl::StrCat(selected.token.value(), ":", bits(selected.logprob));
  for (const TokenLogprob& alternative : selected.alternatives) {
    absl::StrAppend(&text, " ", alternative.token.value(), ":", bits(alternative.logprob));
  }
  return text;
}

std::vector<std::string> Spell(const Outcome& outcome) {
  std::vector<std::string> lines;
  for (const auto* part : {&outcome.prompt, &outcome.output}) {
    for (const SelectedToken& selected : *part) {
      lines.push_back(Spell(selected));
    }
  }
  return lines;
}

std::vector<TokenId> Prompt(std::uint64_t seed, int tokens) {
  const auto count = static_cast<std::size_t>(tokens);
  std::vector<TokenId> prompt = RealTokens(VariedText(seed, count * 6 + 16));
  EXPECT_GE(prompt.size(), count);
  prompt.resize(count);
  return prompt;
}

SamplingParameters Sampling(int number) {
  const auto seed = static_cast<std::uint64_t>(number) * 977;
  switch (number % 4) {
    case 0:
      return {.temperature = 0};
    case 1:
      return {.temperature = 0.8f, .top_p = 0.9f, .seed = seed};
    case 2:
      return {.temperature = 1.1f,
              .top_k = 40,
              .repetition_penalty = 1.2f,
              .frequency_penalty = 0.3f,
              .seed = seed};
    default:
      return {.temperature = 0.7f,
              .min_p = 0.02f,
              .presence_penalty = 0.5f,
              .seed = seed,
              .logit_bias = {{TokenId(253), 2.0f}}};
  }
}

SequenceRequest Request(std::vector<TokenId> prompt, int number, int max_tokens = kOutputTokens) {
  return {.prompt = std::move(prompt),
          .sampling = Sampling(number),
          .max_tokens = max_tokens,
          .logprobs = 3};
}

// Every length, every way of sampling; two of them want their prompt's log probabilities too.
SequenceRequest NthRequest(int number, int max_tokens = kOutputTokens) {
  SequenceRequest request = Request(Prompt(static_cast<std::uint64_t>(number),
                                           kPromptTokens.at(static_cast<std::size_t>(number))),
                                    number, max_tokens);
  request.prompt_logprobs = number == 5 || number == 10;
  return request;
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

Outcome Finish(CollectingSink& sink) {
  const SequenceEnd end = sink.WaitForEnd();
  EXPECT_TRUE(end.status.ok()) << end.status;
  return {sink.prompt_logprobs(), sink.selected(), end.cached_tokens};
}

Outcome Answer(const TestEngine& engine, SequenceRequest request) {
  return Finish(*Start(engine, std::move(request)));
}

constexpr int kTurnTokens = 12;  // what the user says between two answers

// Counts preemptions. Thread-safe.
class PreemptionCounter final : public StepObserver {
 public:
  void OnStep(const StepStatistics& step) override { preempted_ += step.preempted; }
  int preempted() const { return preempted_; }

 private:
  std::atomic<int> preempted_{0};
};

TestEngine MakeObservedEngine(int pool_blocks, bool prefix_cache, PreemptionCounter& counter) {
  TestEngine test{.backend = MakeBackend()};
  const ModelConfig& config = RealModel().config();
  const KvLayout layout = test.backend->LayoutFor(config.layers, config.kv_heads, config.head_dim);
  auto engine =
      Engine::Create({.kv_pool_bytes = static_cast<std::size_t>(pool_blocks) * layout.block_bytes(),
                      .limits = {.max_sequences = 8},
                      .prefix_cache = prefix_cache,
                      .step_observers = {&counter}},
                     RealModel(), *test.backend);
  EXPECT_TRUE(engine.ok()) << engine.status();
  test.engine = *std::move(engine);
  return test;
}

// Leaves the first `blocks` blocks of the prompt in the engine's cache.
void Warm(const TestEngine& engine, SequenceRequest request, int blocks) {
  if (blocks > 0) {
    request.prompt.resize(static_cast<std::size_t>(blocks * kBlockTokens));
    request.max_tokens = 1;
    Answer(engine, std::move(request));
  }
}

// Prefills in `source`, copies the blocks that `target` lacks by hand, and decodes there.
Outcome HandOff(const TestEngine& source,
                const TestEngine& target,
                const SequenceRequest& request,
                int source_blocks,
                int target_blocks) {
  SequenceRequest prefill = request;
  prefill.kind = SequenceKind::kPrefillOnly;
  auto prefill_hooks = std::make_shared<CollectingHooks>();
  prefill.hooks = prefill_hooks;
  const Outcome first = Answer(source, std::move(prefill));
  const std::vector<BlockId> from = prefill_hooks->WaitForBlocks();
  EXPECT_EQ(prefill_hooks->valid_blocks(), source_blocks);

  SequenceRequest import = request;
  import.kind = SequenceKind::kImport;
  auto import_hooks = std::make_shared<CollectingHooks>();
  import.hooks = import_hooks;
  SequenceId id;
  const auto sink = Start(target, std::move(import), &id);
  const std::vector<BlockId> to = import_hooks->WaitForBlocks();
  EXPECT_EQ(import_hooks->valid_blocks(), target_blocks);
  for (std::size_t i = static_cast<std::size_t>(target_blocks); i < to.size(); ++i) {
    std::memcpy(target.Block(to[i]), source.Block(from[i]), source->identity().kv.block_bytes());
  }
  target->GiveFirstToken(id, first.output.at(0));
  target->Adopt(id);
  Outcome outcome = Finish(*sink);
  prefill_hooks->DropPin();
  import_hooks->DropPin();
  return outcome;
}

class IdentityTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cold_ = std::make_unique<TestEngine>(MakeEngine(RealModel(), 128, {}, /*prefix_cache=*/false));
  }
  static void TearDownTestSuite() { cold_.reset(); }

  // What the request is answered when it is alone, in an engine that keeps nothing.
  static Outcome Alone(const SequenceRequest& request) { return Answer(*cold_, request); }
  static const std::vector<Outcome>& AloneEach() {
    static const std::vector<Outcome> outcomes = [] {
      std::vector<Outcome> each;
      for (int number = 0; number < kRequests; ++number) {
        each.push_back(Alone(NthRequest(number)));
      }
      return each;
    }();
    return outcomes;
  }

  static inline std::unique_ptr<TestEngine> cold_;
};

void ExpectSame(const Outcome& actual, const Outcome& expected) {
  EXPECT_EQ(Spell(actual), Spell(expected));
}

// B27: mates that come and go, in batches of 2 to 16.
TEST_F(IdentityTest, TokensDoNotDependOnBatchMates) {
  const std::vector<Outcome>& expected = AloneEach();
  const TestEngine engine = MakeEngine(RealModel(), 400, {.max_sequences = kRequests}, false);
  constexpr std::uint32_t kSeed = 20;
  std::mt19937 random(kSeed);
  for (const std::size_t batch : {2, 3, 5, 9, 16}) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", batch of ", batch));
    std::vector<int> numbers(kRequests);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), random);
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (std::size_t i = 0; i < batch; ++i) {
      if (i > 0 && random() % 2 == 0) {  // joins a batch that runs
        sinks[random() % i]->WaitForTokens(1 + random() % 8);
      }
      sinks.push_back(Start(engine, NthRequest(numbers[i])));
    }
    for (std::size_t i = 0; i < batch; ++i) {
      SCOPED_TRACE(numbers[i]);
      ExpectSame(Finish(*sinks[i]), expected[static_cast<std::size_t>(numbers[i])]);
    }
  }
  EXPECT_TRUE(engine.WaitUntilFree());
}

TEST_F(IdentityTest, TokensDoNotDependOnHowThePromptIsCut) {
  const std::vector<Outcome>& expected = AloneEach();
  for (const int chunk : {1, 7, 16, 255}) {
    const TestEngine engine =
        MakeEngine(RealModel(), 64,
                   {.max_batch_tokens = chunk, .max_sequences = 1, .max_logprob_rows = 5}, false);
    for (const int number : {4, 5, 10, 14}) {
      if (chunk > 1 || number < 10) {  // chunks of one token are slow
        SCOPED_TRACE(absl::StrCat("request ", number, " in chunks of ", chunk));
        ExpectSame(Answer(engine, NthRequest(number)), expected[static_cast<std::size_t>(number)]);
      }
    }
  }
}

// F26: more sequences than the pool holds. With the cache a preempted one finds some of its own
// blocks again, without it computes all of them.
TEST_F(IdentityTest, PreemptionChangesNothing) {
  constexpr int kLongOutput = 60;
  std::vector<Outcome> expected;
  for (int number = 3; number < 9; ++number) {
    expected.push_back(Alone(NthRequest(number, kLongOutput)));
  }
  for (const bool prefix_cache : {false, true}) {
    SCOPED_TRACE(prefix_cache);
    PreemptionCounter counter;
    const TestEngine engine = MakeObservedEngine(18, prefix_cache, counter);
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (int number = 3; number < 9; ++number) {
      sinks.push_back(Start(engine, NthRequest(number, kLongOutput)));
    }
    for (std::size_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(i + 3);
      ExpectSame(Finish(*sinks[i]), expected[i]);
    }
    EXPECT_TRUE(engine.WaitUntilFree());
    EXPECT_GT(counter.preempted(), 0);
  }
}

// T15, T23, T25: all of the prompt is known, or all but a part-filled block.
TEST_F(IdentityTest, AWholeHitIsAnsweredAsACold) {
  const TestEngine engine = MakeEngine(RealModel(), 128);
  for (const int length : {1, 15, 16, 17, 159, 160, 161}) {
    SCOPED_TRACE(length);
    const std::vector<TokenId> prompt = Prompt(100 + static_cast<std::uint64_t>(length), length);
    Answer(engine, Request(prompt, 0, 1));
    for (const int number : {0, 1}) {
      const Outcome warm = Answer(engine, Request(prompt, number));
      EXPECT_EQ(warm.cached_tokens,
                length % kBlockTokens == 0 ? length - 1 : length / kBlockTokens * kBlockTokens);
      ExpectSame(warm, Alone(Request(prompt, number)));
    }
  }
  EXPECT_TRUE(engine.WaitUntilFree());
}

// Each turn's prompt is the whole conversation so far: the cache has the blocks of its prompts and
// of its answers.
TEST_F(IdentityTest, AChatThatHitsItsOwnHistoryIsAnsweredAsACold) {
  const TestEngine engine = MakeEngine(RealModel(), 128);
  std::vector<TokenId> history = Prompt(200, 45);
  for (int turn = 0; turn < 4; ++turn) {
    SCOPED_TRACE(turn);
    const Outcome answer = Answer(engine, Request(history, turn, 25));
    ExpectSame(answer, Alone(Request(history, turn, 25)));
    // The last token of an answer was never computed.
    const auto known = static_cast<int>(history.size()) - kTurnTokens - 1;
    EXPECT_EQ(answer.cached_tokens, turn == 0 ? 0 : known / kBlockTokens * kBlockTokens);
    for (const SelectedToken& selected : answer.output) {
      history.push_back(selected.token);
    }
    const std::vector<TokenId> next = Prompt(201 + static_cast<std::uint64_t>(turn), kTurnTokens);
    history.insert(history.end(), next.begin(), next.end());
  }
  EXPECT_TRUE(engine.WaitUntilFree());
}

// Prompts with a common beginning, all at once: each is the first, waits for the first, or comes
// when it is done.
TEST_F(IdentityTest, AHerdWithACommonBeginningIsAnsweredAsOneByOne) {
  const TestEngine engine =
      MakeEngine(RealModel(), 200, {.max_batch_tokens = 64, .max_sequences = 8});
  std::vector<SequenceRequest> requests;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int number = 0; number < 10; ++number) {
    std::vector<TokenId> prompt = Prompt(300, 128);
    const std::vector<TokenId> own = Prompt(301 + static_cast<std::uint64_t>(number), 4 * number);
    prompt.insert(prompt.end(), own.begin(), own.end());
    requests.push_back(Request(std::move(prompt), number));
    sinks.push_back(Start(engine, requests.back()));
  }
  int cached_tokens = 0;
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    SCOPED_TRACE(i);
    const Outcome outcome = Finish(*sinks[i]);
    ExpectSame(outcome, Alone(requests[i]));
    cached_tokens += outcome.cached_tokens;
  }
  EXPECT_GT(cached_tokens, 0);
  EXPECT_TRUE(engine.WaitUntilFree());
}

// n > 1: the choices share the prompt's blocks and differ in their seeds.
TEST_F(IdentityTest, ForksAreAnsweredAsIfEachWereAlone) {
  const TestEngine engine = MakeEngine(RealModel(), 128);
  const std::vector<TokenId> prompt = Prompt(400, 75);
  SequenceId leader;
  std::vector<std::shared_ptr<CollectingSink>> sinks = {Start(engine, Request(prompt, 1), &leader)};
  for (const int number : {2, 3, 5}) {
    SequenceRequest fork = Request(prompt, number);
    fork.fork_of = leader;
    sinks.push_back(Start(engine, std::move(fork)));
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    constexpr std::array kNumbers = {1, 2, 3, 5};
    SCOPED_TRACE(i);
    ExpectSame(Finish(*sinks[i]), Alone(Request(prompt, kNumbers.at(i))));
  }
  EXPECT_TRUE(engine.WaitUntilFree());
}

// T16, T22, B45: prefill in one engine, decode in another, each with some blocks of the prompt at
// hand already. The salt keeps one round's blocks from the next one's.
TEST_F(IdentityTest, AHandoffBetweenWarmAndColdEnginesIsAnsweredAsByOne) {
  constexpr int kLength = 75;  // four whole blocks and a part of one
  constexpr int kBlocks = BlocksForTokens(kLength);
  const TestEngine source = MakeEngine(RealModel(), 64);
  const TestEngine target = MakeEngine(RealModel(), 64);
  const std::vector<TokenId> prompt = Prompt(500, kLength);
  const Outcome expected = Alone(Request(prompt, 1));
  for (int source_blocks = 0; source_blocks < kBlocks; source_blocks += 2) {
    for (int target_blocks = 0; target_blocks < kBlocks; ++target_blocks) {
      SCOPED_TRACE(
          absl::StrCat(source_blocks, " blocks at the source, ", target_blocks, " at the target"));
      SequenceRequest request = Request(prompt, 1);
      request.cache_salt = absl::StrCat(source_blocks, "/", target_blocks);
      Warm(source, request, source_blocks);
      Warm(target, request, target_blocks);
      ExpectSame(HandOff(source, target, request, source_blocks, target_blocks), expected);
    }
  }
  EXPECT_TRUE(source.WaitUntilFree());
  EXPECT_TRUE(target.WaitUntilFree());
}

}  // namespace
}  // namespace baton
