#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "baton/v1/worker.pb.h"
#include "frontend/grpc_server.h"
#include "router/fleet.h"
#include "router/route_policy.h"
#include "router/tiered_index.h"

namespace baton {

class AdminService;
class AdmissionGenerator;
class Checkpoint;
class CompletionsService;
class FleetService;
class MeteredGenerator;
class MetricsServer;
class RetryBudget;
class RouteChooser;
class RouterGenerator;
class RouterMetrics;
class SpanFile;

struct RouterOptions {
  GrpcServerOptions server;
  FleetOptions fleet;  // the fingerprints come from the checkpoint
  TieredIndex::Options index;
  std::size_t queue_size = 256;  // requests that wait for a place at a worker
  RouteOptions route;
  // Prompts are split from the length on from which it is measured to pay here, instead of from
  // route.colocate_below_tokens on, which counts until enough was measured.
  bool measured_crossover = false;
  std::string policy_name = "prefix";  // of route.policy, as it is shown
  std::string zone;                    // of requests that name none; empty: any worker will do
  std::string metrics_listen;          // host:port; empty: none
  std::string trace_file;              // path; empty: none
};

// The router: completions over a fleet of workers. Ready while some decode worker may get requests.
//
// Used by the main thread; the services it owns are thread-safe.
class Router {
 public:
  // `checkpoint` must outlive the router; no weight of it is read. Serves at once, ready or not.
  // Errors are those of GrpcServer::Start and of the TLS files.
  static absl::StatusOr<std::unique_ptr<Router>> Start(const Checkpoint& checkpoint,
                                                       RouterOptions options);
  ~Router();

  const std::string& address() const { return server_->address(); }

  // Serves until SIGTERM or SIGINT; returns the exit code (see GrpcServer::Run).
  int Run();

 private:
  Router(const Checkpoint& checkpoint,
         RouterOptions options,
         std::unique_ptr<TieredIndex> index,
         std::unique_ptr<Fleet> fleet,
         std::unique_ptr<SpanFile> spans);

  v1::StatusResponse Snapshot() const;
  void TakeRates(const FleetRates& rates);
  // Sequences that the decode workers run at once.
  std::size_t Capacity() const;

  const RouterOptions options_;
  const std::string model_name_;
  const TimePoint started_;
  // Destroyed from the last to the first: calls end before what they use goes.
  std::unique_ptr<SpanFile> spans_;  // null without
  std::unique_ptr<RouterMetrics> metrics_;
  std::unique_ptr<TieredIndex> index_;
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<FleetService> registrations_;
  std::unique_ptr<RouteChooser> chooser_;
  std::unique_ptr<RetryBudget> retries_;
  std::unique_ptr<RouterGenerator> generator_;
  std::unique_ptr<AdmissionGenerator> admission_;
  std::unique_ptr<MeteredGenerator> metered_;
  std::unique_ptr<CompletionsService> completions_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<MetricsServer> metrics_server_;  // null without
  std::unique_ptr<GrpcServer> server_;
};

}  // namespace baton
