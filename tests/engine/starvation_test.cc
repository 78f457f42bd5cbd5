#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/real_model.h"
#include "tests/support/prompts.h"

namespace baton {
namespace {

constexpr int kStreams = 16;
constexpr int kOutputTokens = 40;
constexpr std::size_t kLongestPrompt = 1840;
constexpr SchedulerLimits kLimits{.max_batch_tokens = 256, .max_sequences = kStreams};

// When something happened, on the engine thread: by the clock, and by the time that this thread
// has computed. The second is what counts, since others use the machine too; with one thread the
// engine thread computes everything.
struct Moment {
  static Moment Now() {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return {Clock::System().Now(),
            std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec)};
  }

  TimePoint wall;
  Duration computed{};
};

double Milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// Counts steps and keeps what each of a shape took. Written by the engine thread.
class StepClock final : public StepObserver {
 public:
  void OnStep(const StepStatistics& step) override {
    const Moment now = Moment::Now();
    absl::MutexLock lock(&mutex_);
    const Duration computed = now.computed - last_.computed;
    if (step.rows() == kLimits.max_batch_tokens && step.decode_rows == 0) {
      chunk_ = std::max(chunk_, computed);
      chunks_total_ += computed;
      ++chunks_;
    } else if (step.decode_rows == kStreams && step.prefill_rows == 0) {
      decode_ = std::max(decode_, computed);
    }
    last_ = now;
    ++steps_;
    preempted_ += step.preempted;
  }

  int steps() {
    absl::MutexLock lock(&mutex_);
    return steps_;
  }
  int preempted() {
    absl::MutexLock lock(&mutex_);
    return preempted_;
  }
  // The longest step of nothing but a full chunk of a prompt.
  Duration chunk() {
    absl::MutexLock lock(&mutex_);
    return chunk_;
  }
  Duration mean_chunk() {
    absl::MutexLock lock(&mutex_);
    return chunks_total_ / std::max(chunks_, 1);
  }
  // The longest step of one row for each stream.
  Duration decode() {
    absl::MutexLock lock(&mutex_);
    return decode_;
  }

 private:
  absl::Mutex mutex_;
  int steps_ ABSL_GUARDED_BY(mutex_) = 0;
  int preempted_ ABSL_GUARDED_BY(mutex_) = 0;
  Moment last_ ABSL_GUARDED_BY(mutex_);
  Duration chunk_ ABSL_GUARDED_BY(mutex_){};
  Duration chunks_total_ ABSL_GUARDED_BY(mutex_){};
  int chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  Duration decode_ ABSL_GUARDED_BY(mutex_){};
};

// The gaps between a stream's tokens, from its own first token on. Written by the engine thread.
class GapSink final : public TokenSink {
 public:
  explicit GapSink(StepClock& steps) : steps_(steps) {}

  void OnToken(const SelectedToken&) override {
    const Moment now = Moment::Now();
    const int step = steps_.steps();
    absl::MutexLock lock(&mutex_);
    if (tokens_++ > 0) {
      most_steps_ = std::max(most_steps_, step - last_step_);
      computed_ = std::max(computed_, now.computed - last_.computed);
      wall_ = std::max(wall_, now.wall - last_.wall);
    }
    last_ = now;
    last_step_ = step;
  }
  void OnEnd(const SequenceEnd& end) override {
    EXPECT_TRUE(end.status.ok()) << end.status;
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  bool WaitForTokens(int count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return ended_ || tokens_ >= count;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(120)) && tokens_ >= count;
  }
  bool WaitForEnd() {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&ended_), absl::Seconds(120));
  }
  int tokens() {
    absl::MutexLock lock(&mutex_);
    return tokens_;
  }
  int most_steps() {
    absl::MutexLock lock(&mutex_);
    return most_steps_;
  }
  Duration computed() {
    absl::MutexLock lock(&mutex_);
    return computed_;
  }
  Duration wall() {
    absl::MutexLock lock(&mutex_);
    return wall_;
  }

 private:
  StepClock& steps_;
  absl::Mutex mutex_;
  int tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  Moment last_ ABSL_GUARDED_BY(mutex_);
  int last_step_ ABSL_GUARDED_BY(mutex_) = 0;
  int most_steps_ ABSL_GUARDED_BY(mutex_) = 0;
  Duration computed_ ABSL_GUARDED_BY(mutex_){};
  Duration wall_ ABSL_GUARDED_BY(mutex_){};
};

class StarvationTest : public testing::Test {
 protected:
  StarvationTest() {
    const ModelConfig& config = RealModel().config();
    const KvLayout layout = backend_->LayoutFor(config.layers, config.kv_heads, config.head_dim);
    constexpr std::size_t kPoolBlocks = 800;  // all streams fit
    auto created = Engine::Create({.kv_pool_bytes = kPoolBlocks * layout.block_bytes(),
                                   .limits = kLimits,
                                   .step_observers = {&steps_}},
                                  RealModel(), *backend_);
    EXPECT_TRUE(created.ok()) << created.status();
    engine_ = *std::move(created);
  }

  std::shared_ptr<GapSink> Start(std::uint64_t seed, std::size_t prompt_tokens, int max_tokens) {
    std::vector<TokenId> prompt = RealTokens(VariedText(seed, prompt_tokens * 6));
    EXPECT_GE(prompt.size(), prompt_tokens);
    prompt.resize(prompt_tokens);
    auto sink = std::make_shared<GapSink>(steps_);
    const auto id = engine_->Submit({.prompt = std::move(prompt),
                                     .sampling = {.temperature = 0},
                                     .max_tokens = max_tokens,
                                     .sink = sink});
    EXPECT_TRUE(id.ok()) << id.status();
    return sink;
  }

  // The chunks of the longest prompt with nobody else about (a later one takes longer, for it looks
  // back on more tokens), then steps of one row for each stream.
  void MeasureStepsAlone(std::uint64_t seed) {
    Start(seed, kLongestPrompt, 1)->WaitForEnd();
    std::vector<std::shared_ptr<GapSink>> sinks;
    for (int i = 0; i < kStreams; ++i) {
      sinks.push_back(Start(++seed, 8, 12));
    }
    for (const auto& sink : sinks) {
      sink->WaitForEnd();
    }
    EXPECT_TRUE(WaitUntilFree(*engine_));
  }

  StepClock steps_;
  std::unique_ptr<Backend> backend_ = MakeBackend();
  std::unique_ptr<Engine> engine_;
};

// Streams that run while prompts long and short arrive, each when the one before has said a few
// tokens.
TEST_F(StarvationTest, NoRunningStreamWaitsForMoreThanOneChunk) {
  MeasureStepsAlone(1000);
  std::vector<std::shared_ptr<GapSink>> streams;
  for (std::size_t i = 0; i < kStreams; ++i) {
    const std::size_t prompt_tokens = i % 3 == 2 ? kLongestPrompt - 60 * (14 - i) : 16 + 29 * i;
    streams.push_back(Start(i, prompt_tokens, kOutputTokens));
    if (i % 3 != 1) {  // every third comes together with the one before
      ASSERT_TRUE(streams[i]->WaitForTokens(3));
    }
  }
  for (const auto& stream : streams) {
    ASSERT_TRUE(stream->WaitForEnd());
  }
  ASSERT_TRUE(WaitUntilFree(*engine_));
  ASSERT_EQ(steps_.preempted(), 0);
  MeasureStepsAlone(2000);
  const Duration bound = 2 * steps_.chunk() + steps_.decode();

  Duration computed{};
  Duration wall{};
  for (std::size_t i = 0; i < kStreams; ++i) {
    EXPECT_EQ(streams[i]->tokens(), kOutputTokens);
    EXPECT_EQ(streams[i]->most_steps(), 1) << "stream " << i << " sat out a step";
    EXPECT_LE(Milliseconds(streams[i]->computed()), Milliseconds(bound)) << "stream " << i;
    computed = std::max(computed, streams[i]->computed());
    wall = std::max(wall, streams[i]->wall());
  }
  std::printf("chunk of %d rows: longest %.1f ms, mean %.1f ms; step of %d rows %.1f ms\n",
              kLimits.max_batch_tokens, Milliseconds(steps_.chunk()),
              Milliseconds(steps_.mean_chunk()), kStreams, Milliseconds(steps_.decode()));
  std::printf("largest gap %.1f ms, %.2f of the bound; by the clock %.1f ms\n",
              Milliseconds(computed), Milliseconds(computed) / Milliseconds(bound),
              Milliseconds(wall));
}

}  // namespace
}  // namespace baton
