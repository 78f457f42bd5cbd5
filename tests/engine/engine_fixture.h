#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/engine.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/checkpoint.h"
#include "tools/tiny_model.h"

namespace baton {

// Keeps what a sequence says; waits for its end with a deadline. Thread-safe.
class CollectingSink final : public TokenSink {
 public:
  void OnPromptLogprobs(std::vector<SelectedToken> tokens) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(tokens_.empty() && prompt_logprobs_.empty());
    prompt_logprobs_ = std::move(tokens);
  }
  void OnToken(const SelectedToken& token) override {
    absl::MutexLock lock(&mutex_);
    tokens_.push_back(token.token.value());
    selected_.push_back(token);
  }
  void OnEnd(const SequenceEnd& end) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(end_.has_value()) << "a second end";
    end_ = end;
  }

  SequenceEnd WaitForEnd() {
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(this, &CollectingSink::Ended),
                                 absl::Seconds(60))) {
      ADD_FAILURE() << "the sequence did not end";
      return {.status = absl::DeadlineExceededError("test")};
    }
    return *end_;
  }
  // False when the sequence ended with fewer.
  bool WaitForTokens(std::size_t count) {
    absl::MutexLock lock(&mutex_);
    wanted_ = count;
    return mutex_.AwaitWithTimeout(absl::Condition(this, &CollectingSink::HasTokens),
                                   absl::Seconds(60)) &&
           tokens_.size() >= count;
  }
  std::vector<std::uint32_t> tokens() {
    absl::MutexLock lock(&mutex_);
    return tokens_;
  }
  // The tokens with their log probabilities.
  std::vector<SelectedToken> selected() {
    absl::MutexLock lock(&mutex_);
    return selected_;
  }
  std::vector<SelectedToken> prompt_logprobs() {
    absl::MutexLock lock(&mutex_);
    return prompt_logprobs_;
  }

 private:
  bool Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); }
  bool HasTokens() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return end_.has_value() || tokens_.size() >= wanted_;
  }

  absl::Mutex mutex_;
  std::vector<std::uint32_t> tokens_ ABSL_GUARDED_BY(mutex_);
  std::vector<SelectedToken> selected_ ABSL_GUARDED_BY(mutex_);
  std::vector<SelectedToken> prompt_logprobs_ ABSL_GUARDED_BY(mutex_);
  std::size_t wanted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<SequenceEnd> end_ ABSL_GUARDED_BY(mutex_);
};

// Keeps the pin that an import or a prefill is given, and what was reported ready. Thread-safe.
class CollectingHooks final : public HandoffHooks {
 public:
  void OnAdmitted(PinnedBlocks pin, int valid_blocks) override {
    absl::MutexLock lock(&mutex_);
    pin_.emplace(std::move(pin));
    valid_blocks_ = valid_blocks;
    ++admissions_;
  }
  void OnLayerComputed(LayerIndex layer, int first_block, int block_count) override {
    absl::MutexLock lock(&mutex_);
    ready_.resize(
        std::max<std::size_t>(ready_.size(), static_cast<std::size_t>(first_block + block_count)));
    for (int i = first_block; i < first_block + block_count; ++i) {
      ready_[static_cast<std::size_t>(i)].push_back(static_cast<int>(layer.value()));
    }
  }

  // The blocks of the nth admission, counted from 1.
  std::vector<BlockId> WaitForBlocks(int admission = 1) {
    absl::MutexLock lock(&mutex_);
    wanted_ = admission;
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(this, &CollectingHooks::Admitted),
                                        absl::Seconds(60)));
    return pin_.has_value() ? std::vector<BlockId>(pin_->blocks().begin(), pin_->blocks().end())
                            : std::vector<BlockId>();
  }
  int valid_blocks() {
    absl::MutexLock lock(&mutex_);
    return valid_blocks_;
  }
  // By block: the layers reported ready, in order of report.
  std::vector<std::vector<int>> ready() {
    absl::MutexLock lock(&mutex_);
    return ready_;
  }
  void DropPin() {
    absl::MutexLock lock(&mutex_);
    pin_.reset();
  }

 private:
  bool Admitted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return admissions_ >= wanted_; }

  absl::Mutex mutex_;
  std::optional<PinnedBlocks> pin_ ABSL_GUARDED_BY(mutex_);
  int valid_blocks_ ABSL_GUARDED_BY(mutex_) = 0;
  int admissions_ ABSL_GUARDED_BY(mutex_) = 0;
  int wanted_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<std::vector<int>> ready_ ABSL_GUARDED_BY(mutex_);
};

// A tiny model in a file of this test process.
inline std::unique_ptr<Checkpoint> OpenTinyModel(const TinyModelOptions& options = {}) {
  const std::string path = testing::TempDir() + "tiny_" + std::to_string(getpid()) + "_" +
                           std::to_string(options.seed) + ".gguf";
  EXPECT_TRUE(WriteTinyGguf(options, path).ok());
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::remove(path.c_str());  // stays mapped
  return *std::move(checkpoint);
}

inline std::unique_ptr<Backend> MakeBackend(const CpuOptions& options = {}) {
  auto backend = CreateCpuBackend(options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

// All blocks are back, checked against the clock.
inline bool WaitUntilFree(const Engine& engine) {
  const TimePoint deadline = Clock::System().Now() + std::chrono::seconds(20);
  while (Clock::System().Now() < deadline) {
    const EngineLoad load = engine.load();
    if (load.free_blocks == load.total_blocks && load.running == 0 && load.waiting == 0) {
      return true;
    }
    std::this_thread::yield();
  }
  return false;
}

// One engine with its own backend.
struct TestEngine {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Engine> engine;

  Engine* operator->() const { return engine.get(); }

  std::byte* Block(BlockId block) const {
    return engine->pool_base() + block.value() * engine->identity().kv.block_bytes();
  }
  bool WaitUntilFree() const { return baton::WaitUntilFree(*engine); }
};

inline TestEngine MakeEngine(const Checkpoint& checkpoint,
                             int pool_blocks,
                             SchedulerLimits limits = {},
                             bool prefix_cache = true) {
  TestEngine test{.backend = MakeBackend()};
  const ModelConfig& config = checkpoint.config();
  const KvLayout layout = test.backend->LayoutFor(config.layers, config.kv_heads, config.head_dim);
  auto engine =
      Engine::Create({.kv_pool_bytes = static_cast<std::size_t>(pool_blocks) * layout.block_bytes(),
                      .limits = limits,
                      .prefix_cache = prefix_cache},
                     checkpoint, *test.backend);
  EXPECT_TRUE(engine.ok()) << engine.status();
  test.engine = *std::move(engine);
  return test;
}

}  // namespace baton
