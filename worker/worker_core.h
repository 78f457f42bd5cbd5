#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "common/random_id.h"
#include "engine/engine.h"
#include "frontend/metrics_server.h"
#include "frontend/request_meter.h"
#include "kernels/ops.h"
#include "kernels/profiled_backend.h"
#include "kvtransfer/transfer_service.h"
#include "kvtransfer/transport.h"
#include "model/checkpoint.h"
#include "worker/kv_event_log.h"
#include "worker/rate_meter.h"
#include "worker/report_hub.h"
#include "worker/trace_file.h"
#include "worker/worker_metrics.h"

namespace baton {

struct WorkerOptions {
  v1::Role role = v1::ROLE_UNSPECIFIED;
  EngineOptions engine;
  TransferTimes transfer_times;
  MemoryKind pool_kind = MemoryKind::kHost;  // of the backend's memory
  TransportPolicy transport;
  std::string metrics_listen;  // host:port; empty: none
  std::string advertise_host;  // of the metrics; empty: the host of `metrics_listen`
  std::string trace_file;      // path; empty: none
  std::string zone;            // residency zone; empty: none
};

// What a prefill and a decode worker have in common: one model on one backend in one engine, and
// the service that hands its KV blocks to another process; and what shows where the engine's time
// goes. Owns all of it; destroyed in the order in which each lets go of the next.
//
// Thread-safe.
class WorkerCore {
 public:
  // Loads the model's weights into `backend`, which takes seconds for a large one, and starts
  // engine, transfer thread and metrics.
  static absl::StatusOr<std::unique_ptr<WorkerCore>> Create(const WorkerOptions& options,
                                                            std::unique_ptr<Checkpoint> checkpoint,
                                                            std::unique_ptr<Backend> backend,
                                                            TransportFactory transport);

  // Ends what runs: transfers first, since they hold pins of the engine's blocks.
  ~WorkerCore();

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  Engine& engine() { return *engine_; }
  TransferService& transfer() { return *transfer_; }
  const TransportPolicy& transport() const { return transport_; }
  // host:port of --kv-listen, with the port that was taken.
  std::string kv_door() const;
  const InstanceId& instance() const { return instance_; }
  v1::Role role() const { return role_; }
  // Null without metrics.
  const MetricsServer* metrics() const { return metrics_server_.get(); }

  // Handoffs are counted there.
  WorkerMetrics& worker_metrics() { return step_metrics_; }
  // Where the spans of requests go; null without a trace.
  SpanSink* spans() const { return trace_.get(); }
  // What a decode worker measures its requests with, for its metrics.
  const RequestMeter& requests() const { return requests_; }

  // The gRPC address by which peers and routers reach this process; known once its server listens.
  void SetAddress(std::string address);

  // Tells every router that listens before it returns, which takes 200 ms at most.
  void SetDraining();

  // The engine has made no step for too long, or makes steps again: routers are told as above that
  // no sequence can run here, and CheckAlive fails.
  void SetStalled(bool stalled);
  // UNAVAILABLE while the engine stands still: a request would wait for nothing.
  absl::Status CheckAlive() const;

  // OK when this worker may serve a request of residency zone `zone`: it has none, or is in it.
  // FAILED_PRECONDITION naming both otherwise.
  absl::Status CheckZone(const std::string& zone) const;

  v1::WorkerDescription Describe() const;
  // The Admin answer of this process.
  v1::StatusResponse Status() const;
  // What goes to routers.
  ReportHub& reports() { return *reports_; }
  // What it has seen itself do, for the description.
  RateMeter& rates() { return rates_; }

 private:
  WorkerCore(const WorkerOptions& options,
             std::unique_ptr<Checkpoint> checkpoint,
             std::unique_ptr<Backend> backend,
             std::unique_ptr<TraceFile> trace);

  absl::Status Start(const WorkerOptions& options, TransportFactory transport);

  const v1::Role role_;
  const std::string zone_;
  const SchedulerLimits limits_;
  const TransportPolicy transport_;
  const InstanceId instance_ = InstanceId::Make();
  const TimePoint started_ = Clock::System().Now();
  const std::unique_ptr<Checkpoint> checkpoint_;
  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<TraceFile> trace_;  // null without
  ProfiledBackend profiled_;                // of backend_; what the engine computes with
  WorkerMetrics step_metrics_;
  RequestMeter requests_;
  KvEventLog kv_events_;
  RateMeter rates_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TransferService> transfer_;
  std::unique_ptr<MetricsServer> metrics_server_;  // null without
  std::atomic<bool> draining_{false};
  std::atomic<bool> stalled_{false};
  mutable absl::Mutex mutex_;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ReportHub> reports_;  // last: its thread uses the above
};

// Converts and checks a sequence that another process asks for; INVALID_ARGUMENT names the field.
// The engine checks lengths and ids against its model.
absl::StatusOr<SequenceRequest> MakeSequenceRequest(const v1::SequenceSpec& spec);

// Keeps the engine's blocks alive for a transfer.
class BlockPin final : public RegionPin {
 public:
  explicit BlockPin(PinnedBlocks blocks) : blocks_(std::move(blocks)) {}

 private:
  PinnedBlocks blocks_;
};

}  // namespace baton
