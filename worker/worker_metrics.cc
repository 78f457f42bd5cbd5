#include "worker/worker_metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/strong_id.h"
#include "frontend/metric_families.h"
#include "frontend/request_meter.h"

namespace baton {
namespace {

using prometheus::MetricFamily;

void AddLoad(MetricFamilies& out, const EngineLoad& load) {
  out.Gauge("vllm:num_requests_running",
            "Sequences admitted, those whose KV is on the way included.", load.running);
  out.Gauge("vllm:num_requests_waiting", "Sequences not admitted yet, or preempted.", load.waiting);
  const int used = load.total_blocks - load.free_blocks;
  out.Gauge("vllm:kv_cache_usage_perc",
            "Share of the KV blocks in use, 0 to 1; cached blocks that nobody uses are free.",
            static_cast<double>(used) / std::max(1, load.total_blocks));
  out.Counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
              load.prefix_query_tokens);
  out.Counter("vllm:prefix_cache_hits_total", "Of these, tokens found.", load.prefix_hit_tokens);
  out.Gauge("baton_kv_cached_blocks", "Free KV blocks whose content a prompt may find again.",
            load.cached_blocks);
  out.Gauge("vllm:cache_config_info", "Geometry of the KV pool; always 1.", 1,
            {{"block_size", absl::StrCat(kBlockTokens)},
             {"num_gpu_blocks", absl::StrCat(load.total_blocks)}});
}

void AddTotals(MetricFamilies& out, const StepTotals& totals) {
  out.Counter("vllm:prompt_tokens_total",
              "Tokens of prompts whose first token was sampled here; each prompt counts once.",
              totals.prompt_tokens);
  out.Counter("vllm:generation_tokens_total", "Tokens sampled.", totals.sampled_tokens);
  out.Counter("vllm:num_preemptions_total", "Sequences that lost their blocks and waited again.",
              totals.preempted);
  out.Distribution("vllm:iteration_tokens_total", "Rows of a step, prefill and decode together.",
                   totals.step_rows);
  out.Distribution("baton_step_seconds", "Time of a step.", totals.step_seconds);
  out.BeginCounters("baton_step_rows_total",
                    "Rows computed: of prompts, after a preemption again, and of output tokens.");
  out.Count({{"kind", "prefill"}}, static_cast<double>(totals.prefill_rows));
  out.Count({{"kind", "decode"}}, static_cast<double>(totals.decode_rows));
  out.BeginCounters("baton_step_operation_seconds_total",
                    "Where the time of the steps went; adds up to baton_step_seconds_sum.");
  for (std::size_t i = 0; i < kOperationNames.size(); ++i) {
    out.Count({{"operation", std::string(kOperationNames[i])}},
              MetricSeconds(totals.operations[i]));
  }
  out.Count({{"operation", "schedule"}}, MetricSeconds(totals.scheduling));
  out.Count({{"operation", "other"}}, MetricSeconds(totals.other));
}

// Labels are fixed words: one of the transports, one of the reasons.
void AddTransfer(MetricFamilies& out, const TransferStats& transfer) {
  out.BeginCounters("baton_kv_transport_handoffs_total",
                    "Handoffs received, by the transport that brought the last block.");
  for (std::size_t i = 0; i < kTransportKinds.size(); ++i) {
    out.Count({{"transport", std::string(ToString(kTransportKinds[i]))}},
              static_cast<double>(transfer.landed[i]));
  }
  std::array<int, kTransportKinds.size()> peers{};
  if (transfer.peers != nullptr) {
    for (const PeerTransport& peer : *transfer.peers) {
      // Whatever carries messages for UCX counts as what the flag calls it.
      const TransportKind kind = ParseTransportKind(peer.transport).value_or(TransportKind::kTcp);
      ++peers.at(
          static_cast<std::size_t>(std::find(kTransportKinds.begin(), kTransportKinds.end(), kind) -
                                   kTransportKinds.begin()));
    }
  }
  out.BeginGauges("baton_kv_transport_peers", "Connected workers, by what blocks travel by.");
  for (std::size_t i = 0; i < kTransportKinds.size(); ++i) {
    out.Value({{"transport", std::string(ToString(kTransportKinds[i]))}}, peers[i]);
  }
  out.Counter("baton_kv_transport_moves_total",
              "Times that a handoff went on over another transport because one had failed.",
              transfer.moves);
  out.Counter("baton_kv_sent_bytes_total", "Bytes of KV blocks sent, or announced to be read.",
              transfer.bytes_sent);
  out.Counter("baton_kv_received_bytes_total", "Bytes of KV blocks received or read, intact.",
              transfer.bytes_received);
  out.Counter("baton_kv_refetched_blocks_total", "Blocks asked for again.",
              transfer.refetched_blocks);
  out.Counter("baton_kv_peers_lost_total", "Connections to other workers that ended.",
              transfer.peers_lost);
  out.BeginCounters("baton_kv_dropped_messages_total",
                    "Messages from other workers that were not acted on.");
  for (int i = 0; i < kDropReasons; ++i) {
    const auto reason = static_cast<DropReason>(i);
    out.Count({{"reason", std::string(ToString(reason))}},
              static_cast<double>(transfer.dropped_for(reason)));
  }
  out.BeginCounters("baton_kv_transfer_thread_seconds_total",
                    "Processor time of the thread that moves KV blocks.");
  out.Count({{"thread", "transfer"}}, MetricSeconds(transfer.thread_time));
}

void AddHandoffEnds(MetricFamilies& out, const HandoffTotals& handoffs) {
  out.BeginCounters("baton_kv_handoffs_total",
                    "Handoffs that ended at this worker, by its side and how; an expired one was "
                    "given up because the other side fell silent.");
  constexpr std::pair<const char*, PrefillHandoffState> kOffered[] = {
      {"released", PrefillHandoffState::kReleased},
      {"failed", PrefillHandoffState::kFailed},
      {"cancelled", PrefillHandoffState::kCancelled},
      {"expired", PrefillHandoffState::kExpired}};
  for (const auto& [end, state] : kOffered) {
    out.Count({{"side", "prefill"}, {"end", end}},
              static_cast<double>(handoffs.offered[static_cast<std::size_t>(state)]));
  }
  constexpr std::pair<const char*, DecodeHandoffState> kFetched[] = {
      {"done", DecodeHandoffState::kDone},
      {"failed", DecodeHandoffState::kFailed},
      {"cancelled", DecodeHandoffState::kCancelled}};
  for (const auto& [end, state] : kFetched) {
    out.Count({{"side", "decode"}, {"end", end}},
              static_cast<double>(handoffs.fetched[static_cast<std::size_t>(state)]));
  }
  out.Distribution("baton_kv_transfer_bytes", "Bytes of a handoff whose blocks have all come.",
                   handoffs.transfer_bytes);
}

// Of the requests that came with a prefill worker.
void AddHandoffs(MetricFamilies& out, const RequestTotals& requests) {
  out.Distribution(
      "baton_kv_transfer_seconds",
      "Of a request whose KV blocks were handed over: from the first byte to the last.",
      requests.transfer);
  out.Distribution("baton_kv_transfer_exposed_seconds",
                   "Of such a request: from the first token's arrival to all blocks adopted.",
                   requests.exposed_transfer);
  out.Counter("baton_kv_transfer_fallbacks_total",
              "Requests whose prompt was computed here because every handoff had failed.",
              requests.prefill_failed);
}

class WorkerCollectable final : public prometheus::Collectable {
 public:
  WorkerCollectable(const WorkerMetrics& metrics,
                    const std::string& model,
                    std::function<EngineLoad()> load,
                    std::function<TransferStats()> transfer,
                    const RequestMeter* requests)
      : metrics_(metrics),
        model_(model),
        load_(std::move(load)),
        transfer_(std::move(transfer)),
        requests_(requests) {}

  std::vector<MetricFamily> Collect() const override {
    MetricFamilies families(model_);
    AddLoad(families, load_());
    AddTotals(families, metrics_.totals());
    AddTransfer(families, transfer_());
    AddHandoffEnds(families, metrics_.handoffs());
    if (requests_ != nullptr) {
      const RequestTotals requests = requests_->totals();
      AddRequestMetrics(families, requests);
      AddHandoffs(families, requests);
    }
    families.Process(requests_ != nullptr ? "decode" : "prefill");
    return families.Take();
  }

 private:
  const WorkerMetrics& metrics_;
  const std::string model_;
  const std::function<EngineLoad()> load_;
  const std::function<TransferStats()> transfer_;
  const RequestMeter* const requests_;  // null: none come here
};

}  // namespace

// Steps of a tiny model take less than a millisecond, a chunk of a large one on a few cores
// seconds. The bounds of the rows are vLLM's.
StepTotals::StepTotals()
    : step_seconds({0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1,
                    2, 5, 10}),
      step_rows({1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {}

// From one block of a small model to the longest prompts of large ones.
HandoffTotals::HandoffTotals()
    : transfer_bytes({1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28,
                      1 << 30, 4.0 * (1 << 30), 16.0 * (1 << 30)}) {}

void WorkerMetrics::OnStep(const StepStatistics& step) {
  absl::MutexLock lock(&mutex_);
  totals_.step_seconds.Add(MetricSeconds(step.duration));
  if (step.rows() > 0) {
    totals_.step_rows.Add(step.rows());
  }
  totals_.prefill_rows += static_cast<std::uint64_t>(step.prefill_rows);
  totals_.decode_rows += static_cast<std::uint64_t>(step.decode_rows);
  totals_.prompt_tokens += static_cast<std::uint64_t>(step.prompt_tokens);
  totals_.sampled_tokens += static_cast<std::uint64_t>(step.sampled_tokens);
  totals_.preempted += static_cast<std::uint64_t>(step.preempted);
  for (std::size_t i = 0; i < kOperationNames.size(); ++i) {
    totals_.operations[i] += step.operations.sums()[i].time;
  }
  const Duration scheduling = step.scheduling - step.scheduling_operations;
  totals_.scheduling += scheduling;
  totals_.other += step.duration - scheduling - step.operations.total();
}

void WorkerMetrics::OnHandoffEnd(PrefillHandoffState end) {
  absl::MutexLock lock(&mutex_);
  ++handoffs_.offered.at(static_cast<std::size_t>(end));
}

void WorkerMetrics::OnHandoffEnd(DecodeHandoffState end) {
  absl::MutexLock lock(&mutex_);
  ++handoffs_.fetched.at(static_cast<std::size_t>(end));
}

void WorkerMetrics::OnTransfer(std::size_t bytes) {
  absl::MutexLock lock(&mutex_);
  handoffs_.transfer_bytes.Add(static_cast<double>(bytes));
}

HandoffTotals WorkerMetrics::handoffs() const {
  absl::MutexLock lock(&mutex_);
  return handoffs_;
}

StepTotals WorkerMetrics::totals() const {
  absl::MutexLock lock(&mutex_);
  return totals_;
}

std::shared_ptr<prometheus::Collectable> WorkerMetrics::MakeCollectable(
    std::function<EngineLoad()> load,
    std::function<TransferStats()> transfer,
    const RequestMeter* requests) const {
  return std::make_shared<WorkerCollectable>(*this, model_, std::move(load), std::move(transfer),
                                             requests);
}

}  // namespace baton
