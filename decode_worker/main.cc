#include <cstdio>
#include <cstdlib>

#include "common/log.h"
#include "common/status_macros.h"
#include "decode_worker/decode_service.h"
#include "decode_worker/decode_sessions.h"
#include "frontend/admin_service.h"
#include "frontend/completions_service.h"
#include "frontend/grpc_server.h"
#include "kvtransfer/ucx/ucx_transport.h"
#include "worker/start_worker.h"
#include "worker/worker_service.h"

namespace baton {
namespace {

// Both doors of a decode worker are drained together; every request of the first is also one of the
// second.
class BothDoors final : public DrainTarget {
 public:
  BothDoors(CompletionsService& completions, DecodeSessions& sessions)
      : completions_(completions), sessions_(sessions) {}

  void StopIntake() override {
    completions_.StopIntake();
    sessions_.StopIntake();
  }
  std::size_t InFlight() const override { return completions_.InFlight() + sessions_.InFlight(); }
  void CancelRest(const absl::Status& why) override {
    completions_.CancelRest(why);
    sessions_.CancelRest(why);
  }

 private:
  CompletionsService& completions_;
  DecodeSessions& sessions_;
};

absl::StatusOr<int> Serve(const WorkerFlags& flags) {
  ASSIGN_OR_RETURN(const std::unique_ptr<WorkerCore> core, StartWorker(flags, v1::ROLE_DECODE));
  ASSIGN_OR_RETURN(const std::unique_ptr<PrefillClient> prefill,
                   PrefillClient::Create(flags.server.tls));
  DecodeSessions sessions(*core, *prefill, HandoffTimes{});
  LocalGenerator generator(sessions);
  CompletionsService completions(core->checkpoint(), generator,
                                 {.zones = {.only = flags.server.zone},
                                  .spans = core->spans(),
                                  .span_name = "decode.completion"});
  DecodeService decode(sessions);
  WorkerService worker(*core);
  AdminService admin([&core] { return core->Status(); });
  ASSIGN_OR_RETURN(const std::unique_ptr<GrpcServer> server,
                   GrpcServer::Start(MakeGrpcServerOptions(flags.server, "decode"),
                                     {{v1::Completions::service_full_name(), &completions},
                                      {v1::DecodeWorker::service_full_name(), &decode},
                                      {v1::Worker::service_full_name(), &worker},
                                      {v1::Admin::service_full_name(), &admin}}));
  sessions.SetAddress(server->address());
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
      flags, *core, *server, [&sessions](const absl::Status& why) { sessions.GiveUpWaiting(why); });
  BothDoors doors(completions, sessions);
  return server->Run(doors);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::WorkerFlags settings;
  settings.server.listen = "127.0.0.1:0";
  settings.server.cache = baton::DefaultCacheFolder(std::getenv("HOME"));
  baton::Flags flags("baton-decode",
                     "Baton's decode worker: streams tokens, prefills short prompts itself, and "
                     "takes the KV blocks of "
                     "long ones from a prefill worker.");
  baton::AddWorkerFlags(flags, baton::v1::ROLE_DECODE, settings);
  if (const std::optional<int> code = flags.Parse(argc, argv); code.has_value()) {
    return *code;
  }
  baton::SetUpLog(baton::MakeLogOptions(settings.server, "decode"));
  baton::ucx::SetDefaults();
  const absl::StatusOr<int> code = baton::Serve(settings);
  if (!code.ok()) {
    std::fprintf(stderr, "baton-decode: %s\n", std::string(code.status().message()).c_str());
    return 1;
  }
  return *code;
}
