#include "bench/engine_runner.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "bench/machine_limits.h"
#include "common/status_macros.h"
#include "kernels/cpu/cpu_backend.h"

namespace baton {
namespace {

struct Stamp {
  TimePoint wall;
  double cpu = 0;  // of the process

  static Stamp Now() { return {Clock::System().Now(), ProcessCpuSeconds()}; }
};

Timing Between(const Stamp& begin, const Stamp& end) {
  return {.wall_seconds = std::chrono::duration<double>(end.wall - begin.wall).count(),
          .cpu_seconds = end.cpu - begin.cpu};
}

// Notes when each token of one sequence came. Thread-safe.
class StampingSink final : public TokenSink {
 public:
  explicit StampingSink(int most_tokens) { stamps_.reserve(static_cast<std::size_t>(most_tokens)); }

  void OnToken(const SelectedToken&) override {
    const Stamp now = Stamp::Now();
    absl::MutexLock lock(&mutex_);
    stamps_.push_back(now);
  }
  void OnEnd(const SequenceEnd& end) override {
    absl::MutexLock lock(&mutex_);
    status_ = end.status;
    ended_ = true;
  }

  // Blocks until the sequence has ended.
  absl::StatusOr<std::vector<Stamp>> Wait() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
    if (!status_.ok()) {
      return status_;
    }
    return stamps_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<Stamp> stamps_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Holds the engine thread at its first token until it is let go, so that requests submitted
// meanwhile start together. Thread-safe.
class HoldingSink final : public TokenSink {
 public:
  void OnToken(const SelectedToken&) override { let_go_.WaitForNotification(); }
  void OnEnd(const SequenceEnd&) override {}

  void LetGo() { let_go_.Notify(); }

 private:
  absl::Notification let_go_;
};

SequenceRequest GreedyRequest(std::vector<TokenId> prompt,
                              int max_tokens,
                              std::shared_ptr<TokenSink> sink) {
  return {.request_id = "bench",
          .prompt = std::move(prompt),
          .sampling = {.temperature = 0},
          .max_tokens = max_tokens,
          .sink = std::move(sink)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineRunner>> EngineRunner::Create(
    const EngineRunnerOptions& options, const Checkpoint& checkpoint) {
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                   CreateCpuBackend({.isa = options.isa, .threads = options.threads}));
  return CreateOn(std::move(backend), options, checkpoint);
}

absl::StatusOr<std::unique_ptr<EngineRunner>> EngineRunner::CreateOn(
    std::unique_ptr<Backend> backend,
    const EngineRunnerOptions& options,
    const Checkpoint& checkpoint) {
  EngineOptions engine_options{.kv_pool_bytes = options.kv_pool_bytes, .prefix_cache = false};
  engine_options.limits.max_batch_tokens = options.max_batch_tokens;
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                   Engine::Create(engine_options, checkpoint, *backend));
  std::unique_ptr<EngineRunner> runner(
      new EngineRunner(options, checkpoint, std::move(backend), std::move(engine)));
  RETURN_IF_ERROR(runner->MeasurePrefill(options.max_batch_tokens).status());
  RETURN_IF_ERROR(runner->MeasureDecode({.streams = 2, .depth = 16, .steps = 4}).status());
  return runner;
}

EngineRunner::EngineRunner(const EngineRunnerOptions& options,
                           const Checkpoint& checkpoint,
                           std::unique_ptr<Backend> backend,
                           std::unique_ptr<Engine> engine)
    : max_batch_tokens_(options.max_batch_tokens),
      vocabulary_(checkpoint.config().vocabulary),
      backend_(std::move(backend)),
      // arithmetic() names backend and code path: "cpu-avx2".
      isa_(backend_->arithmetic().substr(backend_->name().size() + 1)),
      engine_(std::move(engine)) {}

absl::StatusOr<Timing> EngineRunner::Measure(const Figure& figure) {
  return figure.kind == FigureKind::kPrefill ? MeasurePrefill(figure.prompt_tokens)
                                             : MeasureDecode(figure.decode);
}

absl::StatusOr<Timing> EngineRunner::MeasurePrefill(int tokens) {
  const auto sink = std::make_shared<StampingSink>(1);  // shared: the engine holds it too
  SequenceRequest request = GreedyRequest(RandomPrompt(tokens), 1, sink);
  const Stamp begin = Stamp::Now();
  RETURN_IF_ERROR(engine_->Submit(std::move(request)).status());
  ASSIGN_OR_RETURN(const std::vector<Stamp> stamps, sink->Wait());
  return Between(begin, stamps.front());
}

absl::StatusOr<Timing> EngineRunner::MeasureDecode(const DecodeShape& shape) {
  const int depth = std::max(shape.depth, 1);         // a prompt has at least a token
  const auto hold = std::make_shared<HoldingSink>();  // shared: the engine holds it too
  RETURN_IF_ERROR(engine_->Submit(GreedyRequest(RandomPrompt(1), 1, hold)).status());
  absl::Cleanup let_go = [&hold] { hold->LetGo(); };
  // Steps until the last prompt is in, in which the others go on: all streams must outlast them.
  const int start_steps =
      2 + shape.streams * depth / std::max(1, max_batch_tokens_ - shape.streams);
  const int max_tokens = 1 + shape.steps + (shape.streams > 1 ? start_steps : 0);
  std::vector<std::shared_ptr<StampingSink>> sinks;
  for (int stream = 0; stream < shape.streams; ++stream) {
    sinks.push_back(std::make_shared<StampingSink>(max_tokens));
    RETURN_IF_ERROR(
        engine_->Submit(GreedyRequest(RandomPrompt(depth), max_tokens, sinks.back())).status());
  }
  std::move(let_go).Invoke();
  std::vector<std::vector<Stamp>> streams;
  for (const auto& sink : sinks) {
    ASSIGN_OR_RETURN(std::vector<Stamp> stamps, sink->Wait());
    streams.push_back(std::move(stamps));
  }
  const auto started_before = [](const auto& a, const auto& b) {
    return a.front().wall < b.front().wall;
  };
  const std::vector<Stamp>& last =
      *std::max_element(streams.begin(), streams.end(), started_before);
  const Stamp& begin = last.front();
  const Stamp& end = last[static_cast<std::size_t>(shape.steps)];
  for (const std::vector<Stamp>& stamps : streams) {
    // Tokens of one step come within a moment of each other, in no order that counts.
    const auto inside = std::count_if(stamps.begin(), stamps.end(), [&](const Stamp& stamp) {
      return stamp.wall > begin.wall && stamp.wall <= end.wall;
    });
    if (inside < shape.steps - 1 || inside > shape.steps + 1) {
      return absl::InternalError(absl::StrCat("a stream took ", inside, " tokens in ", shape.steps,
                                              " steps: not all were running"));
    }
  }
  return Between(begin, end);
}

std::vector<TokenId> EngineRunner::RandomPrompt(int tokens) {
  std::mt19937_64 random(++seed_);
  std::vector<TokenId> prompt;
  for (int i = 0; i < tokens; ++i) {
    prompt.emplace_back(
        static_cast<std::uint32_t>(random() % static_cast<std::uint64_t>(vocabulary_)));
  }
  return prompt;
}

}  // namespace baton
