#include "worker/start_worker.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/backends.h"
#include "kvtransfer/ucx/ucx_transport.h"
#include "model/model_path.h"
#include "worker/device_staging_copier.h"

namespace baton {
namespace {

// From a checked host:port; brackets of an IPv6 host are not part of it.
ucx::TransportOptions ListenOptions(const std::string& host_port,
                                    const std::string& advertise_host) {
  const std::size_t colon = host_port.rfind(':');
  std::string host = host_port.substr(0, colon);
  if (host.starts_with('[')) {
    host = host.substr(1, host.size() - 2);
  }
  int port = 0;
  const bool parsed = absl::SimpleAtoi(host_port.substr(colon + 1), &port);
  BATON_CHECK(parsed);
  return {.listen_host = host, .port = port, .advertise_host = advertise_host};
}

struct TransportChoice {
  std::string name;
  std::string reason;
};

// The one place that decides how KV blocks leave this worker. `asked` is a checked --kv-transport.
TransportChoice ChooseTransport(const std::string& asked) {
  if (asked == "auto") {
    return {.name = "tcp",
            .reason = "the only transport of this version: active messages over what UCX finds"};
  }
  return {.name = asked, .reason = "asked for by --kv-transport"};
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerCore>> StartWorker(const WorkerFlags& flags, v1::Role role) {
  ASSIGN_OR_RETURN(const std::string path,
                   ResolveModelPath(flags.server.model, flags.server.cache));
  LogEvent(LogLevel::kInfo, "model.opening", {{"path", path}});
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                   Checkpoint::Open(path, flags.server.cache));
  ASSIGN_OR_RETURN(ChosenBackend chosen, CreateBackend(MakeBackendOptions(flags)));
  const bool is_emulated = chosen.backend->name() == "emulated";
  LogEvent(is_emulated ? LogLevel::kWarn : LogLevel::kInfo, "device.chosen",
           {{"device", std::string(chosen.backend->name())}, {"reason", chosen.reason}});
  const TransportChoice choice = ChooseTransport(flags.kv_transport);
  LogEvent(LogLevel::kInfo, "transport.chosen",
           {{"transport", choice.name},
            {"reason", choice.reason},
            {"staged", chosen.device != nullptr ? "true" : "false"}});
  TransportFactory transport =
      ucx::MakeTransport(ListenOptions(flags.kv_listen, flags.server.advertise_host));
  return WorkerCore::Create({.role = role,
                             .engine = MakeEngineOptions(flags, chosen),
                             .pool_kind = MemoryKindOf(chosen.device),
                             .transport = choice.name,
                             .metrics_listen = flags.server.metrics_listen,
                             .advertise_host = flags.server.advertise_host,
                             .trace_file = flags.server.trace_file},
                            std::move(checkpoint), std::move(chosen.backend),
                            StageFor(chosen.device, std::move(transport)));
}

}  // namespace baton
