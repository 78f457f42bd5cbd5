#include "engine/step_statistics.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "kernels/profiled_backend.h"
#include "tests/engine/engine_fixture.h"

namespace baton {
namespace {

// Adds up what an engine tells, and checks of each step what holds of every step. Thread-safe.
class AddingObserver final : public StepObserver {
 public:
  void OnStep(const StepStatistics& step) override {
    CheckTimes(step);
    absl::MutexLock lock(&mutex_);
    ++steps_;
    sum_.prefill_rows += step.prefill_rows;
    sum_.decode_rows += step.decode_rows;
    sum_.decode_sequences += step.decode_sequences;
    sum_.decode_context_tokens += step.decode_context_tokens;
    sum_.prefilled_tokens += step.prefilled_tokens;
    sum_.sampled_tokens += step.sampled_tokens;
    sum_.prompt_tokens += step.prompt_tokens;
    sum_.preempted += step.preempted;
    sum_.cached_tokens += step.cached_tokens;
    sum_.scheduling_operations += step.scheduling_operations;
    most_rows_ = std::max(most_rows_, step.rows());
    most_running_ = std::max(most_running_, step.running);
    fewest_free_blocks_ = std::min(fewest_free_blocks_, step.free_blocks);
    last_ = step;
    last_.calls = {};
  }

  StepStatistics sum() {
    absl::MutexLock lock(&mutex_);
    return sum_;
  }
  StepStatistics last() {
    absl::MutexLock lock(&mutex_);
    return last_;
  }
  int steps() {
    absl::MutexLock lock(&mutex_);
    return steps_;
  }
  int most_rows() {
    absl::MutexLock lock(&mutex_);
    return most_rows_;
  }
  int most_running() {
    absl::MutexLock lock(&mutex_);
    return most_running_;
  }
  int fewest_free_blocks() {
    absl::MutexLock lock(&mutex_);
    return fewest_free_blocks_;
  }

 private:
  static void CheckTimes(const StepStatistics& step) {
    EXPECT_GT(step.duration, Duration::zero());
    EXPECT_LE(step.decode_sequences, step.decode_rows);
    EXPECT_EQ(step.decode_sequences == 0, step.decode_rows == 0);
    EXPECT_EQ(step.decode_context_tokens == 0, step.decode_rows == 0);
    EXPECT_LE(step.scheduling_operations, step.scheduling);
    EXPECT_LE(step.scheduling + step.operations.total(),
              step.duration + step.scheduling_operations);
    TimePoint previous_end = step.start;
    OperationTimes from_calls;
    for (const OperationCall& call : step.calls) {
      EXPECT_GE(call.start, previous_end);
      previous_end = call.start + call.duration;
      from_calls[call.operation].calls += 1;
      from_calls[call.operation].time += call.duration;
    }
    EXPECT_LE(previous_end, step.start + step.duration);
    for (std::size_t i = 0; i < kOperationNames.size(); ++i) {
      EXPECT_EQ(from_calls.sums()[i].calls, step.operations.sums()[i].calls) << kOperationNames[i];
      EXPECT_EQ(from_calls.sums()[i].time, step.operations.sums()[i].time) << kOperationNames[i];
    }
  }

  absl::Mutex mutex_;
  int steps_ ABSL_GUARDED_BY(mutex_) = 0;
  int most_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  int most_running_ ABSL_GUARDED_BY(mutex_) = 0;
  int fewest_free_blocks_ ABSL_GUARDED_BY(mutex_) = 1 << 30;
  StepStatistics sum_ ABSL_GUARDED_BY(mutex_);
  StepStatistics last_ ABSL_GUARDED_BY(mutex_);
};

// An engine whose backend takes times, and who is told.
struct ObservedEngine {
  ObservedEngine(const Checkpoint& checkpoint, int pool_blocks, SchedulerLimits limits) {
    const ModelConfig& config = checkpoint.config();
    const KvLayout layout = cpu->LayoutFor(config.layers, config.kv_heads, config.head_dim);
    auto created = Engine::Create(
        {.kv_pool_bytes = static_cast<std::size_t>(pool_blocks) * layout.block_bytes(),
         .limits = limits,
         .step_observers = {&observer},
         .profile = &profiled},
        checkpoint, profiled);
    EXPECT_TRUE(created.ok()) << created.status();
    engine = *std::move(created);
  }

  AddingObserver observer;
  std::unique_ptr<Backend> cpu = MakeBackend();
  ProfiledBackend profiled{*cpu, /*keeps_calls=*/true};
  std::unique_ptr<Engine> engine;
};

constexpr int kSequences = 5;
constexpr int kOutputTokens = 100;

SequenceRequest NthRequest(std::uint32_t number) {
  std::mt19937 random(number);
  SequenceRequest request{.sampling = {.temperature = 0.9f, .seed = number},
                          .max_tokens = kOutputTokens};
  for (int i = 0; i < 20; ++i) {
    request.prompt.emplace_back(3 + static_cast<std::uint32_t>(random() % 500));
  }
  return request;
}
constexpr int kPromptTokens = kSequences * 20;

// Runs all requests together, waits until the engine is empty, and returns their tokens.
std::vector<std::vector<std::uint32_t>> RunAll(Engine& engine) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (std::uint32_t number = 0; number < kSequences; ++number) {
    SequenceRequest request = NthRequest(number);
    sinks.push_back(std::make_shared<CollectingSink>());
    request.sink = sinks.back();
    EXPECT_TRUE(engine.Submit(std::move(request)).ok());
  }
  std::vector<std::vector<std::uint32_t>> tokens;
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->WaitForEnd().status.ok());
    tokens.push_back(sink->tokens());
  }
  EXPECT_TRUE(WaitUntilFree(engine));
  return tokens;
}

class StepStatisticsTest : public testing::Test {
 protected:
  const std::unique_ptr<Checkpoint> checkpoint_ = OpenTinyModel();
};

TEST_F(StepStatisticsTest, RowsAddUpToTheTokens) {
  ObservedEngine observed(*checkpoint_, 256, {.max_batch_tokens = 16, .max_sequences = 8});
  RunAll(*observed.engine);

  const StepStatistics sum = observed.observer.sum();
  const EngineLoad load = observed.engine->load();
  EXPECT_EQ(sum.prefill_rows, kPromptTokens);
  EXPECT_EQ(sum.prompt_tokens, kPromptTokens);
  EXPECT_EQ(static_cast<std::uint64_t>(sum.prefilled_tokens), load.prefilled_tokens);
  EXPECT_EQ(static_cast<std::uint64_t>(sum.sampled_tokens), load.decoded_tokens);
  EXPECT_EQ(sum.sampled_tokens, kSequences * kOutputTokens);
  // The first token of each comes from its prompt's last row, the last token is never computed.
  EXPECT_EQ(sum.decode_rows, kSequences * (kOutputTokens - 1));
  EXPECT_EQ(sum.decode_sequences, sum.decode_rows);
  // The nth token is computed in a context of the prompt and n tokens.
  constexpr int kContexts = (kOutputTokens - 1) * 20 + kOutputTokens * (kOutputTokens - 1) / 2;
  EXPECT_EQ(sum.decode_context_tokens, static_cast<std::uint64_t>(kSequences * kContexts));
  EXPECT_EQ(sum.preempted, 0);
  EXPECT_EQ(observed.observer.most_rows(), 16);
  EXPECT_EQ(observed.observer.last().running, 0);
  EXPECT_EQ(observed.observer.last().waiting, 0);
  EXPECT_EQ(observed.observer.last().free_blocks, load.total_blocks);
  EXPECT_LT(observed.observer.fewest_free_blocks(), load.total_blocks);
}

TEST_F(StepStatisticsTest, EveryOperationOfAStepIsCounted) {
  ObservedEngine observed(*checkpoint_, 256, {.max_batch_tokens = 64, .max_sequences = 8});
  RunAll(*observed.engine);

  const OperationTimes& times = observed.observer.last().operations;
  const int layers = checkpoint_->config().layers;
  EXPECT_EQ(times[Operation::kEmbedTokens].calls, 1);
  EXPECT_EQ(times[Operation::kRotateAndWriteKv].calls, layers);
  EXPECT_EQ(times[Operation::kPagedAttention].calls, layers);
  EXPECT_EQ(times[Operation::kGatedMatMul].calls, layers);
  EXPECT_EQ(times[Operation::kMatMul].calls, 3 * layers + 1);
  EXPECT_EQ(times[Operation::kSelectTokens].calls, 1);
  EXPECT_GT(times[Operation::kMatMul].time, Duration::zero());
}

// B58: a step that takes long is seen to go on, operation by operation; an engine without work is
// seen to live as well.
TEST_F(StepStatisticsTest, EveryOperationIsASignOfLife) {
  ObservedEngine observed(*checkpoint_, 256, {.max_batch_tokens = 64, .max_sequences = 8});
  const std::uint64_t before = observed.engine->signs_of_life();
  SequenceRequest request = NthRequest(1);
  request.max_tokens = 1;
  const auto sink = std::make_shared<CollectingSink>();
  request.sink = sink;
  ASSERT_TRUE(observed.engine->Submit(std::move(request)).ok());
  ASSERT_TRUE(sink->WaitForEnd().status.ok());
  const TimePoint deadline = Clock::System().Now() + std::chrono::seconds(20);
  while (observed.observer.steps() == 0 && Clock::System().Now() < deadline) {
    std::this_thread::yield();  // an end is told within its step
  }
  std::uint64_t operations = 0;
  const StepStatistics last = observed.observer.last();
  for (const OperationTimes::Sum& sum : last.operations.sums()) {
    operations += static_cast<std::uint64_t>(sum.calls);
  }
  EXPECT_EQ(observed.observer.steps(), 1);
  EXPECT_GE(operations, 10u);
  const std::uint64_t after = observed.engine->signs_of_life();
  EXPECT_GE(after - before, operations);
  while (observed.engine->signs_of_life() < after + 2 && Clock::System().Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_GE(observed.engine->signs_of_life(), after + 2);
}

// T46: whoever is cancelled gets the step under way and no other one that matters: two at most,
// whatever has been done of it.
TEST_F(StepStatisticsTest, ACancelledSequenceStopsWithinTwoSteps) {
  ObservedEngine observed(*checkpoint_, 256, {.max_batch_tokens = 16, .max_sequences = 8});
  for (std::uint32_t round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    SequenceRequest request = NthRequest(round);
    request.max_tokens = 400;
    for (int i = 0; i < 80; ++i) {  // six steps of prefill, and in some rounds no further than that
      request.prompt.emplace_back(7);
    }
    const auto sink = std::make_shared<CollectingSink>();
    request.sink = sink;
    const int begun = observed.observer.steps();
    const auto id = observed.engine->Submit(std::move(request));
    ASSERT_TRUE(id.ok()) << id.status();
    while (observed.observer.steps() < begun + 1 + static_cast<int>(round)) {
      std::this_thread::yield();
    }

    observed.engine->Cancel(*id, absl::CancelledError("test"));

    const int cancelled = observed.observer.steps();
    EXPECT_EQ(sink->WaitForEnd().status.code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(WaitUntilFree(*observed.engine));
    EXPECT_LE(observed.observer.steps(), cancelled + 2);
  }
}

// F26's load: what is computed again shows as prefill rows, and counts once as a prompt.
TEST_F(StepStatisticsTest, APreemptedPromptIsComputedAgainButCountsOnce) {
  ObservedEngine observed(*checkpoint_, 11, {.max_batch_tokens = 64, .max_sequences = 8});
  RunAll(*observed.engine);

  const StepStatistics sum = observed.observer.sum();
  EXPECT_GT(sum.preempted, 0);
  EXPECT_GT(sum.prefill_rows, kPromptTokens);
  EXPECT_EQ(sum.prompt_tokens, kPromptTokens);
  EXPECT_EQ(sum.sampled_tokens, kSequences * kOutputTokens);
  EXPECT_EQ(static_cast<std::uint64_t>(sum.prefilled_tokens),
            observed.engine->load().prefilled_tokens);
}

// The second time all of a prompt is there: its last block is copied while the step is planned, and
// one token is computed.
TEST_F(StepStatisticsTest, CachedTokensAreNoRows) {
  ObservedEngine observed(*checkpoint_, 256, {});
  for (int turn = 0; turn < 2; ++turn) {
    SequenceRequest request = NthRequest(0);
    request.prompt.resize(16);
    const auto sink = std::make_shared<CollectingSink>();
    request.sink = sink;
    ASSERT_TRUE(observed.engine->Submit(std::move(request)).ok());
    EXPECT_TRUE(sink->WaitForEnd().status.ok());
  }
  EXPECT_TRUE(WaitUntilFree(*observed.engine));

  const StepStatistics sum = observed.observer.sum();
  EXPECT_EQ(sum.prefill_rows, 16 + 1);
  EXPECT_EQ(sum.cached_tokens, 15);
  EXPECT_EQ(sum.prompt_tokens, 2 * 16);
  EXPECT_GT(sum.scheduling_operations, Duration::zero());
}

TEST_F(StepStatisticsTest, WatchingChangesNoToken) {
  const TestEngine plain = MakeEngine(*checkpoint_, 256);
  ObservedEngine observed(*checkpoint_, 256, {});

  EXPECT_EQ(RunAll(*observed.engine), RunAll(*plain.engine));
}

}  // namespace
}  // namespace baton
