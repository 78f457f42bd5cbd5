#include "router/router.h"

#include <limits>
#include <utility>

#include "common/clock.h"
#include "common/flags.h"
#include "common/log.h"
#include "common/span_log.h"
#include "common/status_macros.h"
#include "frontend/admin_service.h"
#include "frontend/completions_service.h"
#include "frontend/metrics_server.h"
#include "frontend/request_meter.h"
#include "model/checkpoint.h"
#include "proto/status_conversion.h"
#include "router/admission.h"
#include "router/fleet_service.h"
#include "router/measured_rates.h"
#include "router/retry_budget.h"
#include "router/route_chooser.h"
#include "router/router_generator.h"
#include "router/router_metrics.h"

namespace baton {

absl::StatusOr<std::unique_ptr<Router>> Router::Start(const Checkpoint& checkpoint,
                                                      RouterOptions options) {
  options.fleet.model_fingerprint = checkpoint.fingerprint();
  options.fleet.tokenizer_fingerprint = checkpoint.tokenizer().fingerprint();
  auto index = std::make_unique<TieredIndex>(options.index);
  ASSIGN_OR_RETURN(std::unique_ptr<Fleet> fleet, Fleet::Create(options.fleet, *index));
  std::unique_ptr<SpanFile> spans;
  if (!options.trace_file.empty()) {
    ASSIGN_OR_RETURN(spans, SpanFile::Create(options.trace_file, {.service = "baton-router"}));
  }
  auto router = std::unique_ptr<Router>(new Router(checkpoint, std::move(options), std::move(index),
                                                   std::move(fleet), std::move(spans)));
  const std::vector<ServedService> services = {
      {.name = v1::Completions::service_full_name(), .service = router->completions_.get()},
      {.name = v1::Admin::service_full_name(), .service = router->admin_.get()},
      {.name = v1::Fleet::service_full_name(), .service = router->registrations_.get()}};
  ASSIGN_OR_RETURN(router->server_, GrpcServer::Start(router->options_.server, services));
  if (!router->options_.metrics_listen.empty()) {
    ASSIGN_OR_RETURN(
        router->metrics_server_,
        MetricsServer::Start(router->options_.metrics_listen, /*advertise_host=*/"",
                             router->metrics_->MakeCollectable(
                                 [router = router.get()] { return router->Snapshot(); })));
    router->server_->AddDoor("metrics", router->metrics_server_->address());
  }
  router->server_->BeforeStop([service = router->registrations_.get()] { service->EndStreams(); });
  router->fleet_->Start(
      [server = router->server_.get()](bool can_serve) { server->SetReady(can_serve); },
      [router = router.get()](const FleetRates& rates) { router->TakeRates(rates); });
  return router;
}

Router::Router(const Checkpoint& checkpoint,
               RouterOptions options,
               std::unique_ptr<TieredIndex> index,
               std::unique_ptr<Fleet> fleet,
               std::unique_ptr<SpanFile> spans)
    : options_(std::move(options)),
      model_name_(checkpoint.config().name),
      started_(Clock::System().Now()),
      spans_(std::move(spans)),
      metrics_(std::make_unique<RouterMetrics>(model_name_)),
      index_(std::move(index)),
      fleet_(std::move(fleet)),
      registrations_(std::make_unique<FleetService>(*fleet_)),
      chooser_(std::make_unique<RouteChooser>(*fleet_, *index_, options_.route)),
      retries_(std::make_unique<RetryBudget>()),
      generator_(std::make_unique<RouterGenerator>(
          RoutingParts{.chooser = *chooser_,
                       .retries = *retries_,
                       .metrics = *metrics_,
                       .model_fingerprint = options_.fleet.model_fingerprint,
                       .tokenizer_fingerprint = options_.fleet.tokenizer_fingerprint})),
      admission_(std::make_unique<AdmissionGenerator>(
          *generator_,
          AdmissionOptions{.queue_size = options_.queue_size,
                           .limit = [this] { return Capacity(); }})),
      metered_(std::make_unique<MeteredGenerator>(*admission_, metrics_->requests())),
      completions_(std::make_unique<CompletionsService>(
          checkpoint,
          *metered_,
          CompletionsOptions{.model_name = model_name_,
                             .zones = {.of_others = options_.zone},
                             .spans = spans_.get(),
                             .span_name = "router.request"})),
      admin_(std::make_unique<AdminService>([this] { return Snapshot(); })) {}

Router::~Router() {
  registrations_->EndStreams();
  fleet_->Stop();
}

std::size_t Router::Capacity() const {
  std::size_t sequences = 0;
  for (const std::shared_ptr<const UsableWorker>& worker : fleet_->View()->decode) {
    sequences += worker->max_sequences;
  }
  return sequences;
}

void Router::TakeRates(const FleetRates& rates) {
  if (!options_.measured_crossover || !rates.crossover.ok()) {
    return;
  }
  // Where it pays at no length nothing is split that need not be.
  constexpr std::size_t kNever = std::numeric_limits<std::uint32_t>::max();
  const std::size_t tokens = rates.crossover->value_or(kNever);
  if (tokens != chooser_->colocate_below_tokens()) {
    LogEvent(LogLevel::kInfo, "router.crossover_measured", {{"prompt_tokens", tokens}});
    chooser_->set_colocate_below_tokens(tokens);
  }
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
  status.set_ready(!fleet_->View()->decode.empty());
  status.set_colocate_below_tokens(static_cast<std::uint32_t>(chooser_->colocate_below_tokens()));
  for (v1::WorkerStatus& worker : fleet_->Status()) {
    *status.add_workers() = std::move(worker);
  }
  v1::PrefixIndexStatus& index = *status.mutable_prefix_index();
  const TieredIndex::Stats held = index_->stats();
  index.set_entries(held.entries);
  index.set_blocks(held.blocks);
  index.set_bytes(held.bytes);
  index.set_left_out(held.left_out);
  index.set_resyncs(fleet_->resyncs());
  const RouteChooser::Stats placed = chooser_->stats();
  index.set_query_tokens(placed.query_tokens);
  index.set_hit_tokens(placed.hit_tokens);
  for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
    v1::PrefixIndexStatus::Tier& of_tier = *index.add_tiers();
    of_tier.set_tier(static_cast<v1::KvTier>(tier));
    of_tier.set_entries(held.tiers[tier].entries);
    of_tier.set_hit_tokens(placed.hit_tokens_in[tier]);
  }
  status.set_policy(options_.policy_name);
  const FleetRates rates = fleet_->rates();
  *status.mutable_crossover() = DescribeCrossover(
      rates.crossover, static_cast<std::uint32_t>(options_.route.colocate_below_tokens),
      options_.measured_crossover);
  if (rates.rates.has_value()) {
    *status.mutable_rates() = *rates.rates;
  }
  *status.mutable_admission() = admission_->Status();
  status.mutable_admission()->set_retried(retries_->retried());
  status.mutable_admission()->set_retries_denied(retries_->denied());
  for (const auto& [outcome, count] : completions_->FinishedRequests()) {
    (*status.mutable_requests())[outcome] = count;
  }
  return status;
}

}  // namespace baton
