#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "frontend/histogram.h"
#include "frontend/request_meter.h"

namespace prometheus {
class Collectable;
}  // namespace prometheus

namespace baton {

// What a router counts for Prometheus: its decisions and its requests, which it measures, and what
// `baton status` says of fleet, index, crossover and admission.
//
// Label values are bounded: the model's own name, paths, reasons and codes by their enums, and the
// fleet's addresses, of which those that are forgotten are left out.
//
// Thread-safe.
class RouterMetrics {
 public:
  explicit RouterMetrics(std::string model);

  // One routing decision was made, for a prompt of which the chosen worker holds so many blocks.
  void OnDecision(Duration took, std::uint32_t matched_blocks);

  // For a MeteredGenerator before everything that routes and admits.
  const RequestMeter& requests() const { return requests_; }

  // What a scrape gets. `status` is asked at every scrape, on threads of the MetricsServer, which
  // must be gone before this and what `status` uses. Its `requests` are the counts by path and
  // reason, or by code: they add up to all requests that have ended.
  std::shared_ptr<prometheus::Collectable> MakeCollectable(
      std::function<v1::StatusResponse()> status) const;

 private:
  class Snapshot;

  const std::string model_;
  const RequestMeter requests_;
  mutable absl::Mutex mutex_;
  Histogram decision_seconds_ ABSL_GUARDED_BY(mutex_);
  Histogram matched_blocks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
