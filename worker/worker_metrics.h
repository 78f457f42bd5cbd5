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
#include "kernels/operation_times.h"
#include "kvtransfer/transfer_types.h"

namespace prometheus {
class Collectable;
}  // namespace prometheus

namespace baton {

// Counts of values by upper bound; each bound belongs to its bucket.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  void Add(double value);

  const std::vector<double>& bounds() const { return bounds_; }  // ascending
  const std::vector<std::uint64_t>& counts() const {
    return counts_;
  }  // the last: above all bounds
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
};

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

// Adds up an engine's steps for Prometheus. Names are vLLM's where the meaning is, so that its
// dashboards work; the others start with baton_. The one label is the model's name, beside the
// fixed words of `operation` and `kind`.
//
// Thread-safe.
class WorkerMetrics final : public StepObserver {
 public:
  explicit WorkerMetrics(std::string model) : model_(std::move(model)) {}

  void OnStep(const StepStatistics& step) override;

  StepTotals totals() const;

  // What a scrape gets: the totals, and what `load` and `transfer` say, which are asked at every
  // scrape. For a MetricsServer that is gone before this and what they use.
  std::shared_ptr<prometheus::Collectable> MakeCollectable(
      std::function<EngineLoad()> load, std::function<TransferStats()> transfer) const;

 private:
  const std::string model_;
  mutable absl::Mutex mutex_;
  StepTotals totals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
