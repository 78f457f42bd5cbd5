#include "router/router_metrics.h"

#include <prometheus/collectable.h>

#include <map>
#include <utility>
#include <vector>

#include "frontend/metric_families.h"

namespace baton {
namespace {

std::string RoleName(v1::Role role) {
  switch (role) {
    case v1::ROLE_PREFILL:
      return "prefill";
    case v1::ROLE_DECODE:
      return "decode";
    default:
      return "unknown";  // not reached yet
  }
}

std::string TierName(v1::KvTier tier) {
  switch (tier) {
    case v1::KV_TIER_DEVICE:
      return "device";
    case v1::KV_TIER_HOST:
      return "host";
    case v1::KV_TIER_DISK:
      return "disk";
    default:
      return "unknown";
  }
}

// The status names an outcome "path/REASON", or by its code.
void AddOutcomes(MetricFamilies& out, const v1::StatusResponse& status) {
  const std::map<std::string, std::uint64_t> outcomes(status.requests().begin(),
                                                      status.requests().end());
  out.BeginCounters("baton_router_requests_total",
                    "Requests that ended well, by the path they took and why.");
  for (const auto& [outcome, count] : outcomes) {
    if (const std::size_t slash = outcome.find('/'); slash != std::string::npos) {
      out.Count({{"path", outcome.substr(0, slash)}, {"reason", outcome.substr(slash + 1)}},
                static_cast<double>(count));
    }
  }
  out.BeginCounters("baton_router_request_errors_total",
                    "Requests that did not end well, refused ones included, by code.");
  for (const auto& [outcome, count] : outcomes) {
    if (outcome.find('/') == std::string::npos) {
      out.Count({{"code", outcome}}, static_cast<double>(count));
    }
  }
}

void AddFleet(MetricFamilies& out, const v1::StatusResponse& status) {
  out.Gauge("baton_router_ready", "1 while requests can be served.", status.ready() ? 1 : 0);
  out.BeginGauges("baton_worker_up", "1 while the worker is alive and may get requests.");
  for (const v1::WorkerStatus& worker : status.workers()) {
    const bool up = worker.alive() && worker.problem().empty();
    out.Value({{"worker", worker.address()}, {"role", RoleName(worker.description().role())}},
              up ? 1 : 0);
  }
}

void AddIndex(MetricFamilies& out, const v1::PrefixIndexStatus& index) {
  out.Gauge("baton_router_prefix_index_entries", "Pairs of block and worker that are known.",
            static_cast<double>(index.entries()));
  out.Gauge("baton_router_prefix_index_blocks", "Different blocks that are known.",
            static_cast<double>(index.blocks()));
  out.Gauge("baton_router_prefix_index_bytes", "Memory of the prefix index.",
            static_cast<double>(index.bytes()));
  out.Counter("baton_router_prefix_index_left_out_total", "Entries that found no room.",
              index.left_out());
  out.Counter("baton_router_prefix_index_resyncs_total",
              "Snapshots asked of workers because events were missing.", index.resyncs());
  out.Counter("baton_router_prefix_query_tokens_total", "Prompt tokens looked up.",
              index.query_tokens());
  out.Counter("baton_router_prefix_hit_tokens_total", "Of these, held by the worker chosen.",
              index.hit_tokens());
  // Not labels of the families above: their samples would count twice in a sum.
  out.BeginGauges("baton_router_prefix_index_tier_entries",
                  "Pairs of block and worker that are known, by the tier that holds the block.");
  for (const v1::PrefixIndexStatus::Tier& tier : index.tiers()) {
    out.Value({{"tier", TierName(tier.tier())}}, static_cast<double>(tier.entries()));
  }
  out.BeginCounters("baton_router_prefix_tier_hit_tokens_total",
                    "Hit tokens, by the quickest tier of the worker chosen that holds them.");
  for (const v1::PrefixIndexStatus::Tier& tier : index.tiers()) {
    out.Count({{"tier", TierName(tier.tier())}}, static_cast<double>(tier.hit_tokens()));
  }
}

void AddCrossover(MetricFamilies& out, const v1::StatusResponse& status) {
  const v1::Crossover& crossover = status.crossover();
  out.Gauge("baton_router_colocate_below_tokens",
            "Prompts with fewer uncached tokens are served whole by a decode worker.",
            status.colocate_below_tokens());
  out.Gauge("baton_router_crossover_known", "1 when enough was measured to tell the crossover.",
            crossover.known() ? 1 : 0);
  // Without a sample where there is no such length: 0 would read as "always".
  out.BeginGauges("baton_router_crossover_tokens",
                  "Least uncached length from which on disaggregation pays, as measured.");
  if (crossover.known() && crossover.pays()) {
    out.Value({}, crossover.prompt_tokens());
  }
}

void AddAdmission(MetricFamilies& out, const v1::AdmissionStatus& admission) {
  out.Gauge("baton_router_queued_requests", "Requests that wait to be admitted.",
            admission.queued());
  out.Gauge("baton_router_queue_size", "Requests that may wait.", admission.queue_size());
  out.Gauge("baton_router_running_sequences", "Sequences admitted and not ended.",
            admission.running());
  out.Counter("baton_router_refused_total", "Requests refused because the queue was full.",
              admission.refused());
  out.Counter("baton_router_retries_total", "Requests tried again at another worker.",
              admission.retried());
  out.Counter("baton_router_retries_denied_total",
              "Requests that failed without another try for want of budget.",
              admission.retries_denied());
}

}  // namespace

class RouterMetrics::Snapshot final : public prometheus::Collectable {
 public:
  Snapshot(const RouterMetrics& metrics, std::function<v1::StatusResponse()> status)
      : metrics_(metrics), status_(std::move(status)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    const v1::StatusResponse status = status_();
    const RequestTotals requests = metrics_.requests_.totals();
    MetricFamilies out(metrics_.model_);
    AddOutcomes(out, status);
    AddFleet(out, status);
    AddIndex(out, status.prefix_index());
    AddCrossover(out, status);
    AddAdmission(out, status.admission());
    {
      absl::MutexLock lock(&metrics_.mutex_);
      out.Distribution("baton_router_decision_seconds", "Time of choosing where a request goes.",
                       metrics_.decision_seconds_);
      out.Distribution("baton_router_prefix_match_blocks",
                       "Leading blocks of a prompt that the chosen worker holds.",
                       metrics_.matched_blocks_);
    }
    out.Counter("vllm:prompt_tokens_total", "Tokens of prompts that got a token.",
                requests.prompt_tokens_sum);
    out.Counter("vllm:generation_tokens_total", "New tokens of requests that have ended.",
                requests.generation_tokens_sum);
    AddRequestMetrics(out, requests);
    out.Process("router");
    return out.Take();
  }

 private:
  const RouterMetrics& metrics_;
  const std::function<v1::StatusResponse()> status_;
};

// A decision takes microseconds; a prompt of 128 Ki tokens has 8,192 blocks.
RouterMetrics::RouterMetrics(std::string model)
    : model_(std::move(model)),
      decision_seconds_({1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1}),
      matched_blocks_({0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {}

void RouterMetrics::OnDecision(Duration took, std::uint32_t matched_blocks) {
  absl::MutexLock lock(&mutex_);
  decision_seconds_.Add(MetricSeconds(took));
  matched_blocks_.Add(matched_blocks);
}

std::shared_ptr<prometheus::Collectable> RouterMetrics::MakeCollectable(
    std::function<v1::StatusResponse()> status) const {
  return std::make_shared<Snapshot>(*this, std::move(status));
}

}  // namespace baton
