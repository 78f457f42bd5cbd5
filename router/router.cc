#include "router/router.h"

#include <utility>

#include "common/clock.h"
#include "common/flags.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "frontend/admin_service.h"
#include "frontend/completions_service.h"
#include "model/checkpoint.h"
#include "proto/status_conversion.h"
#include "router/router_generator.h"

namespace baton {

absl::StatusOr<std::unique_ptr<Router>> Router::Start(const Checkpoint& checkpoint,
                                                      RouterOptions options) {
  options.fleet.model_fingerprint = checkpoint.fingerprint();
  options.fleet.tokenizer_fingerprint = checkpoint.tokenizer().fingerprint();
  ASSIGN_OR_RETURN(std::unique_ptr<Fleet> fleet, Fleet::Create(options.fleet));
  auto router =
      std::unique_ptr<Router>(new Router(checkpoint, std::move(options), std::move(fleet)));
  const std::vector<ServedService> services = {
      {.name = v1::Completions::service_full_name(), .service = router->completions_.get()},
      {.name = v1::Admin::service_full_name(), .service = router->admin_.get()}};
  ASSIGN_OR_RETURN(router->server_, GrpcServer::Start(router->options_.server, services));
  if (router->options_.fleet.decode.empty()) {
    LogEvent(LogLevel::kWarn, "router.no_decode_worker",
             {{"why", "--decode names none, so nothing can be served"}});
  }
  router->fleet_->Start(
      [server = router->server_.get()](bool can_serve) { server->SetReady(can_serve); });
  return router;
}

Router::Router(const Checkpoint& checkpoint, RouterOptions options, std::unique_ptr<Fleet> fleet)
    : options_(std::move(options)),
      model_name_(checkpoint.config().name),
      started_(Clock::System().Now()),
      fleet_(std::move(fleet)),
      generator_(std::make_unique<RouterGenerator>(*fleet_, options_.route)),
      completions_(std::make_unique<CompletionsService>(
          checkpoint, *generator_, CompletionsOptions{.model_name = model_name_})),
      admin_(std::make_unique<AdminService>([this] { return Snapshot(); })) {}

Router::~Router() {
  fleet_->Stop();
}

int Router::Run() {
  return server_->Run(*completions_);
}

v1::StatusResponse Router::Snapshot() const {
  v1::StatusResponse status;
  status.set_role(v1::ROLE_ROUTER);
  status.set_version(kBatonVersion);
  status.set_model(model_name_);
  *status.mutable_uptime() = ToProtoDuration(Clock::System().Now() - started_);
  status.set_ready(!fleet_->View().decode.empty());
  status.set_colocate_below_tokens(
      static_cast<std::uint32_t>(options_.route.colocate_below_tokens));
  for (v1::WorkerStatus& worker : fleet_->Status()) {
    *status.add_workers() = std::move(worker);
  }
  for (const auto& [outcome, count] : completions_->FinishedRequests()) {
    (*status.mutable_requests())[outcome] = count;
  }
  return status;
}

}  // namespace baton
