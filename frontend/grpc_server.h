#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "frontend/drain_target.h"
#include "proto/tls_credentials.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace baton {

class ShutdownSignals;

struct GrpcServerOptions {
  std::string role;                    // "router", "prefill", "decode": stands in the ready line
  std::string listen = "127.0.0.1:0";  // host:port; 0: a free port
  std::string advertise_host;          // empty: the host of `listen`
  TlsFiles tls;
  bool channelz =
      false;  // serve grpc.channelz.v1 too; one server of the process turns it on for all
  std::chrono::milliseconds drain_grace{30'000};
  // A peer with open calls that has been silent for the first is pinged, and its calls are
  // cancelled when it does not answer in the second: its machine or the network to it has vanished.
  std::chrono::milliseconds ping_after{40'000};
  std::chrono::milliseconds ping_answer{20'000};
};

struct ServedService {
  std::string name;  // full name, e.g. v1::Completions::service_full_name()
  grpc::Service* service = nullptr;
};

// What every server program shares: the gRPC server with health and reflection, the ready line, and
// the orderly end.
//
// Messages up to 16 MiB. Health knows "" and every service by name, all NOT_SERVING until
// SetReady(true).
//
// SetReady is thread-safe; the rest is for the main thread. One object a process, since signals
// belong to the process.
class GrpcServer {
 public:
  // Exit codes of Run.
  static constexpr int kDrained = 0;
  static constexpr int kDrainCutShort =
      3;  // a second signal came or the grace was over: requests were cancelled

  // Listens and serves at once. The services are borrowed and must outlive the server. UNAVAILABLE
  // saying why when the address cannot be listened on (taken, not ours); INVALID_ARGUMENT for TLS
  // files that do not fit.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      GrpcServerOptions options, const std::vector<ServedService>& services);

  // Stops at once whatever still runs.
  ~GrpcServer();

  // Advertised host and real port.
  const std::string& address() const { return address_; }

  // A further address for the ready line, e.g. ("kv", "127.0.0.1:40001"). Call before the first
  // SetReady(true).
  void AddDoor(std::string key, std::string address);

  // `end_streams` is called by Run when no request is under way any more: it ends calls that last
  // as long as the process, which the stop would otherwise wait for. Call before Run.
  void BeforeStop(std::function<void()> end_streams) { end_streams_ = std::move(end_streams); }

  // Sets the health of every service. The first true prints `ready <role> grpc=host:port ...` on
  // standard output. Without effect once the end has begun.
  void SetReady(bool ready);

  // Serves until SIGTERM or SIGINT. Then: NOT_SERVING, no intake, requests under way finish; on a
  // second signal or after the grace the rest ends with UNAVAILABLE. Returns the exit code.
  int Run(DrainTarget& work);

 private:
  GrpcServer(GrpcServerOptions options, std::vector<std::string> service_names);

  void SetHealth(bool serving) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GrpcServerOptions options_;
  const std::vector<std::string> service_names_;  // "" among them
  std::unique_ptr<ShutdownSignals> signals_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::function<void()> end_streams_;

  absl::Mutex mutex_;
  std::vector<std::pair<std::string, std::string>> doors_ ABSL_GUARDED_BY(mutex_);
  bool announced_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton
