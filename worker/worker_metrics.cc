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

namespace baton {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

double Seconds(Duration time) {
  return std::chrono::duration<double>(time).count();
}

// Makes the families of one scrape; every metric carries the model's name.
class Families {
 public:
  explicit Families(const std::string& model) : model_(model) {}

  void Gauge(const char* name, const char* help, double value, Labels labels = {}) {
    Begin(name, help, MetricType::Gauge);
    Next(std::move(labels)).gauge.value = value;
  }

  void Counter(const char* name, const char* help, std::uint64_t value) {
    Begin(name, help, MetricType::Counter);
    Next({}).counter.value = static_cast<double>(value);
  }

  // A counter with one label, whose values Count gives.
  void BeginCounters(const char* name, const char* help, const char* label) {
    Begin(name, help, MetricType::Counter);
    label_ = label;
  }
  void Count(std::string_view label_value, double value) {
    Next({{label_, std::string(label_value)}}).counter.value = value;
  }

  // The same for gauges, whose values Value gives.
  void BeginGauges(const char* name, const char* help, const char* label) {
    Begin(name, help, MetricType::Gauge);
    label_ = label;
  }
  void Value(std::string_view label_value, double value) {
    Next({{label_, std::string(label_value)}}).gauge.value = value;
  }

  void Distribution(const char* name, const char* help, const Histogram& histogram) {
    Begin(name, help, MetricType::Histogram);
    ClientMetric::Histogram& out = Next({}).histogram;
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < histogram.counts().size(); ++i) {
      below += histogram.counts()[i];
      const double bound = i < histogram.bounds().size() ? histogram.bounds()[i]
                                                         : std::numeric_limits<double>::infinity();
      out.bucket.push_back({.cumulative_count = below, .upper_bound = bound});
    }
    out.sample_count = below;
    out.sample_sum = histogram.sum();
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  void Begin(const char* name, const char* help, MetricType type) {
    families_.push_back({.name = name, .help = help, .type = type});
  }

  ClientMetric& Next(Labels labels) {
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = std::move(labels);
    metric.label.push_back({"model_name", model_});
    return metric;
  }

  const std::string& model_;
  std::vector<MetricFamily> families_;
  std::string label_;
};

void AddLoad(Families& out, const EngineLoad& load) {
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
  out.Gauge("vllm:cache_config_info", "Geometry of the KV pool; always 1.", 1,
            {{"block_size", absl::StrCat(kBlockTokens)},
             {"num_gpu_blocks", absl::StrCat(load.total_blocks)}});
}

void AddTotals(Families& out, const StepTotals& totals) {
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
                    "Rows computed: of prompts, after a preemption again, and of output tokens.",
                    "kind");
  out.Count("prefill", static_cast<double>(totals.prefill_rows));
  out.Count("decode", static_cast<double>(totals.decode_rows));
  out.BeginCounters("baton_step_operation_seconds_total",
                    "Where the time of the steps went; adds up to baton_step_seconds_sum.",
                    "operation");
  for (std::size_t i = 0; i < kOperationNames.size(); ++i) {
    out.Count(kOperationNames[i], Seconds(totals.operations[i]));
  }
  out.Count("schedule", Seconds(totals.scheduling));
  out.Count("other", Seconds(totals.other));
}

// Labels are fixed words: one of the transports, one of the reasons.
void AddTransfer(Families& out, const TransferStats& transfer) {
  out.BeginCounters("baton_kv_transport_handoffs_total",
                    "Handoffs received, by the transport that brought the last block.",
                    "transport");
  for (std::size_t i = 0; i < kTransportKinds.size(); ++i) {
    out.Count(ToString(kTransportKinds[i]), static_cast<double>(transfer.landed[i]));
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
  out.BeginGauges("baton_kv_transport_peers", "Connected workers, by what blocks travel by.",
                  "transport");
  for (std::size_t i = 0; i < kTransportKinds.size(); ++i) {
    out.Value(ToString(kTransportKinds[i]), peers[i]);
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
                    "Messages from other workers that were not acted on.", "reason");
  for (int i = 0; i < kDropReasons; ++i) {
    const auto reason = static_cast<DropReason>(i);
    out.Count(ToString(reason), static_cast<double>(transfer.dropped_for(reason)));
  }
  out.BeginCounters("baton_kv_transfer_thread_seconds_total",
                    "Processor time of the thread that moves KV blocks.", "thread");
  out.Count("transfer", Seconds(transfer.thread_time));
}

class WorkerCollectable final : public prometheus::Collectable {
 public:
  WorkerCollectable(const WorkerMetrics& metrics,
                    const std::string& model,
                    std::function<EngineLoad()> load,
                    std::function<TransferStats()> transfer)
      : metrics_(metrics), model_(model), load_(std::move(load)), transfer_(std::move(transfer)) {}

  std::vector<MetricFamily> Collect() const override {
    Families families(model_);
    AddLoad(families, load_());
    AddTotals(families, metrics_.totals());
    AddTransfer(families, transfer_());
    return families.Take();
  }

 private:
  const WorkerMetrics& metrics_;
  const std::string model_;
  const std::function<EngineLoad()> load_;
  const std::function<TransferStats()> transfer_;
};

}  // namespace

void Histogram::Add(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<std::size_t>(bucket)];
  sum_ += value;
}

// Steps of a tiny model take less than a millisecond, a chunk of a large one on a few cores
// seconds. The bounds of the rows are vLLM's.
StepTotals::StepTotals()
    : step_seconds({0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1,
                    2, 5, 10}),
      step_rows({1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {}

void WorkerMetrics::OnStep(const StepStatistics& step) {
  absl::MutexLock lock(&mutex_);
  totals_.step_seconds.Add(Seconds(step.duration));
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

StepTotals WorkerMetrics::totals() const {
  absl::MutexLock lock(&mutex_);
  return totals_;
}

std::shared_ptr<prometheus::Collectable> WorkerMetrics::MakeCollectable(
    std::function<EngineLoad()> load, std::function<TransferStats()> transfer) const {
  return std::make_shared<WorkerCollectable>(*this, model_, std::move(load), std::move(transfer));
}

}  // namespace baton
