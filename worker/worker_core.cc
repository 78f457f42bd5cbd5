#include "worker/worker_core.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/flags.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "proto/identity_conversion.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

constexpr Duration kTransferStopBound = std::chrono::seconds(1);
constexpr Duration kTellBound = std::chrono::milliseconds(200);
constexpr char kStandsStill[] = "this worker's engine stands still";

absl::StatusOr<std::unique_ptr<TraceFile>> OpenTrace(const WorkerOptions& options) {
  if (options.trace_file.empty()) {
    return nullptr;
  }
  return TraceFile::Create(
      options.trace_file,
      {.process = options.role == v1::ROLE_PREFILL ? "baton-prefill" : "baton-decode",
       .json_lines = absl::EndsWith(options.trace_file, ".jsonl")});
}

// What blocks really travel by, where there are peers; else what is allowed.
void DescribeTransports(const TransportPolicy& policy,
                        const TransferStats& transfer,
                        v1::WorkerDescription& description) {
  std::set<std::string> in_use;
  if (transfer.peers != nullptr) {
    for (const PeerTransport& peer : *transfer.peers) {
      in_use.insert(peer.transport);
      v1::KvPeer& proto = *description.add_kv_peers();
      proto.set_address(peer.address);
      proto.set_instance_id(std::string(peer.instance.AsBytes()));
      proto.set_transport(peer.transport);
      proto.set_carrier(peer.carrier);
      proto.set_reason(peer.reason);
    }
  }
  description.set_transport(in_use.empty()
                                ? std::string(policy.forced ? ToString(*policy.forced) : "auto")
                                : absl::StrJoin(in_use, ","));
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerCore>> WorkerCore::Create(
    const WorkerOptions& options,
    std::unique_ptr<Checkpoint> checkpoint,
    std::unique_ptr<Backend> backend,
    TransportFactory transport) {
  ASSIGN_OR_RETURN(std::unique_ptr<TraceFile> trace, OpenTrace(options));
  std::unique_ptr<WorkerCore> core(
      new WorkerCore(options, std::move(checkpoint), std::move(backend), std::move(trace)));
  RETURN_IF_ERROR(core->Start(options, std::move(transport)));
  return core;
}

WorkerCore::WorkerCore(const WorkerOptions& options,
                       std::unique_ptr<Checkpoint> checkpoint,
                       std::unique_ptr<Backend> backend,
                       std::unique_ptr<TraceFile> trace)
    : role_(options.role),
      zone_(options.zone),
      limits_(options.engine.limits),
      transport_(options.transport),
      checkpoint_(std::move(checkpoint)),
      backend_(std::move(backend)),
      trace_(std::move(trace)),
      profiled_(*backend_, /*keeps_calls=*/trace_ != nullptr && trace_->keeps_operations()),
      step_metrics_(checkpoint_->config().name) {}

absl::Status WorkerCore::Start(const WorkerOptions& options, TransportFactory transport) {
  const TimePoint begin = Clock::System().Now();
  EngineOptions engine_options = options.engine;
  engine_options.profile = &profiled_;
  engine_options.step_observers.push_back(&step_metrics_);
  engine_options.step_observers.push_back(&rates_);
  engine_options.cache_observer = &kv_events_;
  if (trace_ != nullptr) {
    engine_options.step_observers.push_back(trace_.get());
  }
  ASSIGN_OR_RETURN(engine_, Engine::Create(engine_options, *checkpoint_, profiled_));
  kv_events_.Reserve(static_cast<std::size_t>(engine_->pool_blocks()));
  const EngineIdentity& identity = engine_->identity();
  ASSIGN_OR_RETURN(transfer_,
                   TransferService::Start({.instance = instance_,
                                           .layout_fingerprint = LayoutFingerprint(identity),
                                           .pool = {.base = engine_->pool_base(),
                                                    .layout = identity.kv,
                                                    .blocks = engine_->pool_blocks(),
                                                    .kind = options.pool_kind},
                                           .times = options.transfer_times,
                                           .transport = options.transport},
                                          std::move(transport)));
  if (!options.metrics_listen.empty()) {
    ASSIGN_OR_RETURN(metrics_server_,
                     MetricsServer::Start(options.metrics_listen, options.advertise_host,
                                          step_metrics_.MakeCollectable(
                                              [this] { return engine_->load(); },
                                              [this] { return transfer_->stats(); },
                                              role_ == v1::ROLE_DECODE ? &requests_ : nullptr)));
  }
  reports_ = std::make_unique<ReportHub>([this] { return Describe(); }, kv_events_);
  const auto took =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::System().Now() - begin);
  LogEvent(LogLevel::kInfo, "engine.ready",
           {{"model", checkpoint_->config().name},
            {"arithmetic", identity.arithmetic},
            {"blocks", engine_->pool_blocks()},
            {"block_bytes", identity.kv.block_bytes()},
            {"load_ms", took.count()},
            {"instance", instance_.ToString()}});
  return absl::OkStatus();
}

std::string WorkerCore::kv_door() const {
  return HostPort(ParseAddresses(transfer_->address()).at(0).address);
}

WorkerCore::~WorkerCore() {
  reports_.reset();
  metrics_server_.reset();
  if (transfer_ != nullptr) {
    transfer_->Stop(kTransferStopBound);
  }
  transfer_.reset();
  engine_.reset();
}

void WorkerCore::SetAddress(std::string address) {
  absl::MutexLock lock(&mutex_);
  address_ = std::move(address);
}

void WorkerCore::SetDraining() {
  draining_.store(true);
  reports_->Describe(kTellBound);
}

void WorkerCore::SetStalled(bool stalled) {
  stalled_.store(stalled);
  reports_->Describe(kTellBound);
}

absl::Status WorkerCore::CheckAlive() const {
  return stalled_.load() ? WithReason(absl::UnavailableError(kStandsStill), "ENGINE_STALLED")
                         : absl::OkStatus();
}

absl::Status WorkerCore::CheckZone(const std::string& zone) const {
  if (zone.empty() || zone == zone_) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("sequence.zone: the request is for zone \"", zone, "\", this worker is in ",
                   zone_.empty() ? std::string("none") : absl::StrCat("\"", zone_, "\"")));
}

v1::WorkerDescription WorkerCore::Describe() const {
  v1::WorkerDescription description;
  description.set_role(role_);
  description.set_instance_id(std::string(instance_.AsBytes()));
  *description.mutable_identity() = ToProto(engine_->identity());
  description.set_model(checkpoint_->config().name);
  description.set_context_tokens(static_cast<std::uint32_t>(checkpoint_->config().context_tokens));
  description.set_kv_address(transfer_->address());
  // No room for any sequence is how a worker says that it takes nothing because it cannot.
  const bool stalled = stalled_.load();
  description.set_draining(draining_.load() || stalled);
  description.set_zone(zone_);
  description.set_max_sequences(stalled ? 0 : static_cast<std::uint32_t>(limits_.max_sequences));
  description.set_max_batch_tokens(static_cast<std::uint32_t>(limits_.max_batch_tokens));
  {
    absl::MutexLock lock(&mutex_);
    description.set_address(address_);
  }
  *description.mutable_rates() = rates_.rates();
  const EngineLoad load = engine_->load();
  const TransferStats transfer = transfer_->stats();
  DescribeTransports(transport_, transfer, description);
  v1::EngineLoad* proto = description.mutable_load();
  const auto unsigned_of = [](auto value) { return static_cast<std::uint32_t>(value); };
  proto->set_total_blocks(unsigned_of(load.total_blocks));
  proto->set_free_blocks(unsigned_of(load.free_blocks));
  // The two snapshots are not taken together: a block on its way back may show in both.
  const int held = load.total_blocks - load.free_blocks;
  const int quarantined = std::min(transfer.quarantined_blocks, held);
  proto->set_quarantined_blocks(unsigned_of(quarantined));
  proto->set_leased_blocks(unsigned_of(held - quarantined));
  proto->set_waiting_sequences(unsigned_of(load.waiting));
  proto->set_running_sequences(unsigned_of(load.running));
  proto->set_prefilled_tokens(load.prefilled_tokens);
  proto->set_decoded_tokens(load.decoded_tokens);
  proto->set_open_handoffs(unsigned_of(transfer.offers + transfer.fetches));
  proto->set_cached_blocks(unsigned_of(load.cached_blocks));
  proto->set_prefix_query_tokens(load.prefix_query_tokens);
  proto->set_prefix_hit_tokens(load.prefix_hit_tokens);
  proto->set_queued_prefill_tokens(load.queued_prefill_tokens);
  proto->set_running_context_tokens(load.decoding_context_tokens);
  proto->set_decoding_sequences(unsigned_of(load.decoding));
  return description;
}

v1::StatusResponse WorkerCore::Status() const {
  v1::StatusResponse response;
  response.set_role(role_);
  response.set_version(kBatonVersion);
  response.set_model(checkpoint_->config().name);
  *response.mutable_uptime() = ToProtoDuration(Clock::System().Now() - started_);
  const bool stalled = stalled_.load();
  response.set_ready(!draining_.load() && !stalled);
  v1::WorkerStatus* self = response.add_workers();
  self->set_alive(true);
  self->set_problem(stalled ? kStandsStill : "");
  *self->mutable_description() = Describe();
  self->set_address(self->description().address());
  return response;
}

absl::StatusOr<SequenceRequest> MakeSequenceRequest(const v1::SequenceSpec& spec) {
  const v1::EngineSampling& sampling = spec.sampling();
  // Written so that NaN fails.
  const auto within = [](float value, float low, float high) {
    return value >= low && value <= high;
  };
  if (!within(sampling.temperature(), 0, 2) || !within(sampling.top_p(), 0, 1) ||
      sampling.top_p() == 0 || !within(sampling.min_p(), 0, 1) ||
      !within(sampling.repetition_penalty(), 0, 2) || sampling.repetition_penalty() == 0 ||
      !within(sampling.frequency_penalty(), -2, 2) || !within(sampling.presence_penalty(), -2, 2)) {
    return absl::InvalidArgumentError("sequence.sampling: a value is out of range");
  }
  constexpr std::uint32_t kMostAlternatives = 20;
  if (spec.logprobs() > kMostAlternatives || (spec.prompt_logprobs() && !spec.has_logprobs())) {
    return absl::InvalidArgumentError(
        "sequence.logprobs: is too large, or absent and wanted of the prompt");
  }
  constexpr std::uint32_t kMostTokens = 1u << 30;
  if (spec.max_tokens() == 0 || spec.max_tokens() > kMostTokens ||
      spec.min_tokens() > spec.max_tokens()) {
    return absl::InvalidArgumentError(
        "sequence.max_tokens: is zero, too large, or below min_tokens");
  }
  constexpr std::size_t kMostZoneBytes = 128;
  if (spec.zone().size() > kMostZoneBytes) {
    return absl::InvalidArgumentError("sequence.zone: is longer than 128 bytes");
  }
  SequenceRequest request{
      .sampling = {.temperature = sampling.temperature(),
                   .top_p = sampling.top_p(),
                   .top_k = static_cast<int>(std::min(sampling.top_k(), kMostTokens)),
                   .min_p = sampling.min_p(),
                   .repetition_penalty = sampling.repetition_penalty(),
                   .frequency_penalty = sampling.frequency_penalty(),
                   .presence_penalty = sampling.presence_penalty(),
                   .seed = sampling.seed()},
      .max_tokens = static_cast<int>(spec.max_tokens()),
      .min_tokens = static_cast<int>(spec.min_tokens()),
      .prompt_logprobs = spec.prompt_logprobs(),
      .cache_salt = spec.cache_salt(),
      .zone = spec.zone()};
  if (spec.has_logprobs()) {
    request.logprobs = static_cast<int>(spec.logprobs());
  }
  for (const auto& [id, bias] : sampling.logit_bias()) {
    if (!std::isfinite(bias)) {
      return absl::InvalidArgumentError("sequence.sampling.logit_bias: a value is not finite");
    }
    request.sampling.logit_bias.push_back({TokenId(id), bias});
  }
  // A proto map has no order; the order of additions must not depend on the process.
  std::sort(request.sampling.logit_bias.begin(), request.sampling.logit_bias.end(),
            [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; });
  for (const std::uint32_t id : spec.prompt()) {
    request.prompt.emplace_back(id);
  }
  for (const std::uint32_t id : spec.stop_token_ids()) {
    request.stop_tokens.emplace_back(id);
  }
  return request;
}

}  // namespace baton
