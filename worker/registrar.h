#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/serial_executor.h"
#include "proto/tls_credentials.h"
#include "worker/register_client.h"
#include "worker/report_hub.h"
#include "worker/router_addresses.h"

namespace baton {

struct RegistrarOptions {
  std::vector<std::string> routers;  // host:port; a name stands for all its addresses
  TlsFiles tls;
  ResolveAddresses resolve = ResolveBySystem;
  Duration resolve_again = std::chrono::seconds(3);
  // Pause before a router is called again, doubled each time until it has accepted; some of it is
  // left out at random, so that a fleet does not call a restarted router all at once.
  Duration retry_min = std::chrono::milliseconds(100);
  Duration retry_max = std::chrono::seconds(2);
};

// Registers this worker with every router: keeps one stream of reports open to each address that
// the routers' names have, for as long as they have it.
//
// A router that is absent, dies or refuses is called again and again. A name that does not resolve
// keeps the addresses it had. What changes is logged, once.
//
// One thread owns the state; one for each name waits for the resolver. Thread-safe.
class Registrar {
 public:
  // Begins at once. `hub` outlives the registrar. Errors are those of the TLS files.
  static absl::StatusOr<std::unique_ptr<Registrar>> Create(RegistrarOptions options,
                                                           ReportHub& hub);
  // Ends the streams, and returns when gRPC has let go of them.
  ~Registrar();
  Registrar(const Registrar&) = delete;
  Registrar& operator=(const Registrar&) = delete;

 private:
  struct Registration;

  Registrar(RegistrarOptions options, ReportHub& hub, std::unique_ptr<RegisterClient> client);

  void KeepResolving(const std::string& router, const std::stop_token& stop);

  // On the executor.
  void TakeAddresses(const std::string& router, const std::vector<std::string>& addresses);
  void DropUnwanted();
  void Call(Registration& registration);
  void OnNotice(const std::string& address, std::uint64_t call, const v1::RouterNotice& notice);
  void OnCallEnd(const std::string& address, std::uint64_t call, const absl::Status& status);
  Duration NextPause(Registration& registration);

  const RegistrarOptions options_;
  ReportHub& hub_;
  const std::unique_ptr<RegisterClient> client_;

  absl::Mutex mutex_;
  int live_calls_ ABSL_GUARDED_BY(mutex_) = 0;

  // On the executor.
  bool stopping_ = false;
  std::uint64_t next_call_ = 1;
  absl::flat_hash_map<std::string, std::vector<std::string>> addresses_;           // by router
  absl::flat_hash_map<std::string, std::unique_ptr<Registration>> registrations_;  // by address
  std::minstd_rand random_{std::random_device()()};

  SerialExecutor executor_;
  std::vector<std::jthread> resolvers_;  // last: they post to the executor
};

}  // namespace baton
