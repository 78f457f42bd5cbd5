#include "frontend/metrics_server.h"

#include <netdb.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>

#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/file.h"
#include "common/log.h"

namespace baton {
namespace {

constexpr const char* kThreads = "2";
constexpr const char* kRequestTimeoutMs = "2000";
constexpr absl::Duration kWakeInterval = absl::Milliseconds(10);

// Connects to a local IPv4 address and hangs up; what comes of it does not matter.
void KnockAt(const std::string& host, int port) {
  const addrinfo wanted{.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &wanted, &found) != 0) {
    return;
  }
  const UniqueFd knocker(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  (void)connect(knocker.get(), found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& listen,
    const std::string& advertise_host,
    std::shared_ptr<prometheus::Collectable> metrics) {
  // A comma would be a list of addresses to the library, a '[' what Debian builds it without.
  if (listen.find_first_of(",[+") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics-listen: ", listen, " is not a name or IPv4 address with a port"));
  }
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    exposer = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", listen, "num_threads", kThreads,
                                 "request_timeout_ms", kRequestTimeoutMs});
    exposer->RegisterCollectable(metrics);
  } catch (const std::exception&) {  // says no more than that there may be a problem
    return absl::UnavailableError(
        absl::StrCat("metrics-listen: cannot listen on ", listen,
                     ": the port is taken, or the address is not this machine's"));
  }
  const std::vector<int> ports = exposer->GetListeningPorts();
  std::string listen_host = listen.substr(0, listen.rfind(':'));
  auto server = std::unique_ptr<MetricsServer>(new MetricsServer(
      std::move(metrics), std::move(exposer), std::move(listen_host), ports.front()));
  server->address_ = absl::StrCat(advertise_host.empty() ? server->listen_host_ : advertise_host,
                                  ":", server->port_);
  LogEvent(LogLevel::kInfo, "metrics.listening",
           {{"listen", listen}, {"address", server->address_}});
  return server;
}

MetricsServer::MetricsServer(std::shared_ptr<prometheus::Collectable> metrics,
                             std::unique_ptr<prometheus::Exposer> exposer,
                             std::string listen_host,
                             int port)
    : metrics_(std::move(metrics)),
      exposer_(std::move(exposer)),
      listen_host_(std::move(listen_host)),
      port_(port) {}

// The library's listening thread looks for the end every two seconds, and when somebody connects.
MetricsServer::~MetricsServer() {
  absl::Notification ended;
  std::jthread ending([this, &ended] {
    exposer_.reset();
    ended.Notify();
  });
  do {
    KnockAt(listen_host_, port_);
  } while (!ended.WaitForNotificationWithTimeout(kWakeInterval));
}

}  // namespace baton
