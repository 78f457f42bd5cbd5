#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "frontend/grpc_server.h"
#include "worker/registrar.h"
#include "worker/stall_watch.h"
#include "worker/worker_core.h"
#include "worker/worker_flags.h"

namespace baton {

// Opens the model that the flags name, makes the backend they ask for, and starts a core that hands
// blocks over by the transports they allow. Blocks until the weights are loaded.
absl::StatusOr<std::unique_ptr<WorkerCore>> StartWorker(const WorkerFlags& flags, v1::Role role);

// Once `core` has its address: begins to register with the routers that the flags name; null when
// there are none. `core` outlives the registrar.
absl::StatusOr<std::unique_ptr<Registrar>> StartRegistrar(const WorkerFlags& flags,
                                                          WorkerCore& core);

// Once the server serves: when the engine begins no operation for too long the server is
// NOT_SERVING and nothing new is taken, until the engine goes on; `give_up` is to end what can be
// done elsewhere. Destroyed before all that it uses.
std::unique_ptr<StallWatch> WatchEngine(const WorkerFlags& flags,
                                        WorkerCore& core,
                                        GrpcServer& server,
                                        std::function<void(const absl::Status& why)> give_up);

}  // namespace baton
