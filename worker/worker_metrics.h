#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/engine.h"
#include "engine/step_statistics.h"
#include "frontend/histogram.h"
#include "kernels/operation_times.h"
#include "kvtransfer/handoff_state.h"
#include "kvtransfer/transfer_types.h"

namespace prometheus {
class Collectable;
}  // namespace prometheus

namespace baton {

class RequestMeter;

// What the steps of one engine add up to since its start.
struct StepTotals {
  StepTotals();

  Histogram step_seconds;
  Histogram step_rows;  // of steps that computed rows
  std::uint64_t prefill_rows = 0;
  std::uint64_t decode_rows = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t sampled_tokens = 0;
  std::uint64_t preempted = 0;
  std::array<Duration, kOperationNames.size()> operations{};  // by the value of Operation
  Duration scheduling{};                                      // without operations
  Duration other{};  // of the steps' time, neither scheduling nor an operation
};

// How the handoffs of one worker have ended. By the value of their state; states that are no ends
// stay 0.
struct HandoffTotals {
  HandoffTotals();

  std::array<std::uint64_t, 8> offered{};  // PrefillHandoffState
  std::array<std::uint64_t, 8> fetched{};  // DecodeHandoffState
  Histogram transfer_bytes;
};

// Adds up an engine's steps for Prometheus. Names are vLLM's where the meaning is, so that its
// dashboards work; the others start with baton_. The one label is the model's name, beside the
// fixed words of `operation` and `kind`.
//
// Thread-safe.
class WorkerMetrics final : public StepObserver {
 public:
  explicit WorkerMetrics(std::string model) : model_(std::move(model)) {}

  void OnStep(const StepStatistics& step) override;

  // One handoff has ended at this worker: at a decode worker one try with one prefill worker.
  void OnHandoffEnd(PrefillHandoffState end);
  void OnHandoffEnd(DecodeHandoffState end);
  // All blocks of a handoff have come, so many bytes.
  void OnTransfer(std::size_t bytes);

  StepTotals totals() const;
  HandoffTotals handoffs() const;

  // What a scrape gets: the totals, what `load` and `transfer` say, which are asked at every
  // scrape, and the requests of a decode worker (null: of a prefill worker, which has handoffs
  // only). For a MetricsServer that is gone before this and what they use.
  std::shared_ptr<prometheus::Collectable> MakeCollectable(std::function<EngineLoad()> load,
                                                           std::function<TransferStats()> transfer,
                                                           const RequestMeter* requests) const;

 private:
  const std::string model_;
  mutable absl::Mutex mutex_;
  StepTotals totals_ ABSL_GUARDED_BY(mutex_);
  HandoffTotals handoffs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
