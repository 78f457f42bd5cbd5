#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace baton {

// Answers GET /metrics over HTTP with what a process counts, in Prometheus' text form. Serves from
// Start until it is destroyed, on a few threads of its own; a connection that does not send its
// request within two seconds is closed; such connections can delay a scrape and the end that long.
//
// Thread-safe.
class MetricsServer {
 public:
  // `listen` is a checked host:port, 0 takes a free port; `advertise_host` as in GrpcServerOptions.
  // `metrics` is shared with scrapes under way; it is asked on the server's threads, several at
  // once.
  //
  // INVALID_ARGUMENT for an IPv6 address, which the HTTP library of this build does not have;
  // UNAVAILABLE when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& listen,
      const std::string& advertise_host,
      std::shared_ptr<prometheus::Collectable> metrics);

  // Waits for scrapes under way.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // Advertised host and real port.
  const std::string& address() const { return address_; }

 private:
  MetricsServer(std::shared_ptr<prometheus::Collectable> metrics,
                std::unique_ptr<prometheus::Exposer> exposer,
                std::string listen_host,
                int port);

  const std::shared_ptr<prometheus::Collectable> metrics_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  const std::string listen_host_;
  const int port_;
  std::string address_;
};

}  // namespace baton
