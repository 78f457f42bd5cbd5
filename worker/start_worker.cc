#include "worker/start_worker.h"

#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/backends.h"
#include "model/model_path.h"
#include "worker/device_staging_copier.h"
#include "worker/transport_setup.h"

namespace baton {

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
  // Before the weights are read: what cannot be had is told at once.
  ASSIGN_OR_RETURN(TransportSetup transport,
                   SetUpTransport(flags, role, /*host_pool=*/chosen.device == nullptr));
  EngineOptions engine = MakeEngineOptions(flags, chosen);
  engine.allocate_pool = std::move(transport.allocate_pool);
  return WorkerCore::Create({.role = role,
                             .engine = std::move(engine),
                             .pool_kind = MemoryKindOf(chosen.device),
                             .transport = transport.policy,
                             .metrics_listen = flags.server.metrics_listen,
                             .advertise_host = flags.server.advertise_host,
                             .trace_file = flags.server.trace_file,
                             .zone = flags.server.zone},
                            std::move(checkpoint), std::move(chosen.backend),
                            StageFor(chosen.device, std::move(transport.factory)));
}

absl::StatusOr<std::unique_ptr<Registrar>> StartRegistrar(const WorkerFlags& flags,
                                                          WorkerCore& core) {
  if (flags.routers.empty()) {
    return nullptr;
  }
  return Registrar::Create({.routers = flags.routers, .tls = flags.server.tls}, core.reports());
}

std::unique_ptr<StallWatch> WatchEngine(const WorkerFlags& flags,
                                        WorkerCore& core,
                                        GrpcServer& server,
                                        std::function<void(const absl::Status& why)> give_up) {
  const std::chrono::milliseconds limit(flags.stalled_after_ms);
  return std::make_unique<StallWatch>(
      [&core] { return core.engine().signs_of_life(); },
      [&core, &server, limit, give_up = std::move(give_up)](bool stalled) {
        if (stalled) {
          LogEvent(LogLevel::kError, "engine.stalled", {{"silent_ms", limit.count()}});
        } else {
          LogEvent(LogLevel::kWarn, "engine.goes_on");
        }
        core.SetStalled(stalled);
        server.SetReady(!stalled);
        if (stalled) {
          give_up(core.CheckAlive());
        }
      },
      StallLimits{.stalled_after = limit});
}

}  // namespace baton
