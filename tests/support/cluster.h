#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "proto/tls_credentials.h"
#include "tests/support/completions_client.h"
#include "tests/support/network.h"
#include "tests/support/patience.h"
#include "tests/support/process.h"
#include "tests/support/reserved_port.h"
#include "tests/support/test_models.h"

namespace baton {

// One of Baton's server programs, which may end and be started again at the same addresses: a
// worker also hands its blocks over at the one it had.
//
// Not thread-safe: started, and therefore kept alive, by one thread (see ChildProcess).
class ServerProcess {
 public:
  // `role` as in the ready line: "router", "prefill", "decode". With TLS flags the test shows it
  // the certificate that they name. Nothing runs before Launch. With a
  // failpoint folder it is the test build of the server (tests/support/failpoint_control.h). `host`
  // outlives it; null: it runs where the test does, and listens on loopback.
  ServerProcess(std::string role,
                std::vector<std::string> flags,
                std::string failpoint_folder = "",
                const TestHost* host = nullptr);

  // More flags for the next Launch.
  void AddFlags(const std::vector<std::string>& flags) {
    flags_.insert(flags_.end(), flags.begin(), flags.end());
  }
  // Launch, and AwaitReady.
  absl::Status Start();
  // Starts the program; one that still runs is killed first.
  absl::Status Launch();
  // Waits for the ready line; the error says what the program has written.
  absl::Status AwaitReady();

  // REQUIRES: launched once.
  ChildProcess& process() { return *process_; }
  const std::string& address() const { return address_; }
  const TlsFiles& tls() const { return tls_; }
  // A further address of the ready line, by its key ("kv", "metrics"); empty when it has none.
  std::string Door(const std::string& key) const;

  // Of a worker; an error when it does not answer.
  absl::StatusOr<v1::WorkerDescription> Describe() const;
  // Of a worker that answers; else the zero load.
  v1::EngineLoad Load() const;
  // A worker that holds nothing: every block free, no sequence, no handoff. A dead one does not
  // answer and is not.
  bool IsIdle() const;
  // Of the router, and of a worker about itself.
  absl::StatusOr<v1::StatusResponse> Status() const;

 private:
  const std::string role_;
  std::vector<std::string> flags_;
  const std::string failpoint_folder_;
  const TestHost* const host_;
  const ReservedPort port_;
  const ReservedPort kv_port_;  // of a worker
  const std::string address_;
  const TlsFiles tls_;
  const std::shared_ptr<grpc::Channel> channel_;  // shared with the stubs made from it
  std::unique_ptr<ChildProcess> process_;
  std::string ready_line_;
};

struct ClusterOptions {
  TestModel model = TinyModel();
  std::string kv_pool_size = "32MiB";
  int prefill_workers = 1;
  std::vector<std::string> worker_flags;  // of both kinds
  std::vector<std::string> decode_flags;
  std::vector<std::string> prefill_flags;
  std::vector<std::string> router_flags;
  int decode_workers = 1;
  // Workers come to the router by themselves; otherwise it has their list.
  bool registered = false;
  std::string failpoint_folder;  // of all servers; empty: the servers as they are deployed
  // The router on its first host, then decode and then prefill workers on one host each. Outlives
  // the cluster. Null: all where the test is.
  const TestNetwork* network = nullptr;
};

// Decode workers (one unless asked otherwise), prefill workers and a router over them. Everything
// is killed by the destructor.
//
// Not thread-safe, as ServerProcess.
class Cluster {
 public:
  // Ready: the router knows every worker.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const ClusterOptions& options = {});

  ServerProcess& router() { return *router_; }
  ServerProcess& decode(std::size_t number = 0) { return *decode_[number]; }
  ServerProcess& prefill(std::size_t number = 0) { return *prefill_[number]; }
  // Of the router.
  const CompletionsClient& client() const { return *client_; }

  // True when, within `patience`, every worker is idle at once.
  bool WaitUntilIdle(std::chrono::milliseconds patience = kPatience) const;
  // Waits until the router would give requests to exactly this many workers, decode workers
  // included, and knows the very processes that run now: a new one at an old address is another
  // worker.
  bool WaitForUsableWorkers(int count, std::chrono::milliseconds patience = kPatience) const;

 private:
  Cluster() = default;
  bool IsKnown(const v1::WorkerStatus& status) const;

  std::vector<std::unique_ptr<ServerProcess>> decode_;
  std::vector<std::unique_ptr<ServerProcess>> prefill_;
  std::unique_ptr<ServerProcess> router_;
  std::unique_ptr<CompletionsClient> client_;
};

}  // namespace baton
