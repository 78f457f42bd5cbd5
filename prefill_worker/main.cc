#include <cstdio>
#include <cstdlib>

#include "common/log.h"
#include "common/status_macros.h"
#include "frontend/admin_service.h"
#include "frontend/grpc_server.h"
#include "kvtransfer/ucx/ucx_transport.h"
#include "prefill_worker/prefill_service.h"
#include "worker/start_worker.h"
#include "worker/worker_service.h"

namespace baton {
namespace {

absl::StatusOr<int> Serve(const WorkerFlags& flags) {
  ASSIGN_OR_RETURN(const std::unique_ptr<WorkerCore> core, StartWorker(flags, v1::ROLE_PREFILL));
  PrefillService prefill(*core);
  WorkerService worker(*core);
  AdminService admin([&core] { return core->Status(); });
  ASSIGN_OR_RETURN(const std::unique_ptr<GrpcServer> server,
                   GrpcServer::Start(MakeGrpcServerOptions(flags.server, "prefill"),
                                     {{v1::PrefillWorker::service_full_name(), &prefill},
                                      {v1::Worker::service_full_name(), &worker},
                                      {v1::Admin::service_full_name(), &admin}}));
  core->SetAddress(server->address());
  server->AddDoor("kv", core->kv_door());
  if (core->metrics() != nullptr) {
    server->AddDoor("metrics", core->metrics()->address());
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Registrar> registrar, StartRegistrar(flags, *core));
  server->BeforeStop([&core, &registrar] {
    registrar.reset();
    core->reports().EndStreams();
  });
  server->SetReady(true);
  const std::unique_ptr<StallWatch> watch = WatchEngine(
      flags, *core, *server, [&prefill](const absl::Status& why) { prefill.GiveUpCalls(why); });
  return server->Run(prefill);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::WorkerFlags settings;
  settings.server.listen = "127.0.0.1:0";
  settings.server.cache = baton::DefaultCacheFolder(std::getenv("HOME"));
  baton::Flags flags(
      "baton-prefill",
      "Baton's prefill worker: runs long prompts and hands their KV blocks to decode workers.");
  baton::AddWorkerFlags(flags, baton::v1::ROLE_PREFILL, settings);
  if (const std::optional<int> code = flags.Parse(argc, argv); code.has_value()) {
    return *code;
  }
  baton::SetUpLog(baton::MakeLogOptions(settings.server, "prefill"));
  baton::ucx::SetDefaults();
  const absl::StatusOr<int> code = baton::Serve(settings);
  if (!code.ok()) {
    std::fprintf(stderr, "baton-prefill: %s\n", std::string(code.status().message()).c_str());
    return 1;
  }
  return *code;
}
