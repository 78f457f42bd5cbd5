#include "worker/worker_metrics.h"

#include <gtest/gtest.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <chrono>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "frontend/request_meter.h"

namespace baton {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// 3 + 5 rows in 10 ms, of which 6 ms are products, 1 ms attention and 1 ms planning; a copy of a
// block, 0.5 ms, is a part of the scheduling.
StepStatistics MixedStep() {
  StepStatistics step{.duration = milliseconds(10),
                      .scheduling = microseconds(1500),
                      .scheduling_operations = microseconds(500),
                      .prefill_rows = 3,
                      .decode_rows = 5,
                      .preempted = 2,
                      .prefilled_tokens = 3,
                      .sampled_tokens = 6,
                      .prompt_tokens = 30};
  step.operations[Operation::kMatMul] = {.calls = 7, .time = milliseconds(6)};
  step.operations[Operation::kPagedAttention] = {.calls = 2, .time = milliseconds(1)};
  step.operations[Operation::kCopy] = {.calls = 1, .time = microseconds(500)};
  return step;
}

// As Prometheus reads it, a line a sample.
std::set<std::string> Lines(const WorkerMetrics& metrics,
                            const EngineLoad& load,
                            const TransferStats& transfer = {},
                            const RequestMeter* requests = nullptr) {
  const auto families =
      metrics.MakeCollectable([load] { return load; }, [transfer] { return transfer; }, requests)
          ->Collect();
  const std::string text = prometheus::TextSerializer().Serialize(families);
  std::set<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.insert(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

TEST(WorkerMetrics, StepsAddUp) {
  WorkerMetrics metrics("tiny");
  metrics.OnStep(MixedStep());
  metrics.OnStep(MixedStep());

  const std::set<std::string> lines = Lines(metrics, {});
  for (const char* line :
       {"vllm:prompt_tokens_total{model_name=\"tiny\"} 60",
        "vllm:generation_tokens_total{model_name=\"tiny\"} 12",
        "vllm:num_preemptions_total{model_name=\"tiny\"} 4",
        "baton_step_rows_total{kind=\"prefill\",model_name=\"tiny\"} 6",
        "baton_step_rows_total{kind=\"decode\",model_name=\"tiny\"} 10",
        "baton_step_operation_seconds_total{operation=\"mat_mul\",model_name=\"tiny\"} 0.012",
        "baton_step_operation_seconds_total{operation=\"paged_attention\",model_name=\"tiny\"} "
        "0.002",
        "baton_step_operation_seconds_total{operation=\"copy\",model_name=\"tiny\"} 0.001",
        "baton_step_operation_seconds_total{operation=\"schedule\",model_name=\"tiny\"} 0.002",
        "baton_step_operation_seconds_total{operation=\"other\",model_name=\"tiny\"} 0.003",
        "baton_step_seconds_count{model_name=\"tiny\"} 2",
        "baton_step_seconds_sum{model_name=\"tiny\"} 0.02"}) {
    EXPECT_TRUE(lines.contains(line)) << line;
  }
}

// Whatever a peer is called, the labels are fixed words.
TEST(WorkerMetrics, TransportsAreCountedByKind) {
  TransferStats transfer;
  transfer.landed = {1, 2, 3, 4};
  transfer.moves = 5;
  transfer.dropped[static_cast<std::size_t>(DropReason::kReplayed)] = 6;
  transfer.thread_time = milliseconds(7);
  transfer.peers = std::make_shared<std::vector<PeerTransport>>(
      std::vector<PeerTransport>{{.transport = "mapped"}, {.transport = "rc_verbs"}});
  const std::set<std::string> lines = Lines(WorkerMetrics("tiny"), {}, transfer);
  for (const char* line :
       {"baton_kv_transport_handoffs_total{transport=\"rdma\",model_name=\"tiny\"} 1",
        "baton_kv_transport_handoffs_total{transport=\"grpc\",model_name=\"tiny\"} 4",
        "baton_kv_transport_peers{transport=\"mapped\",model_name=\"tiny\"} 1",
        "baton_kv_transport_peers{transport=\"tcp\",model_name=\"tiny\"} 1",
        "baton_kv_transport_peers{transport=\"grpc\",model_name=\"tiny\"} 0",
        "baton_kv_transport_moves_total{model_name=\"tiny\"} 5",
        "baton_kv_dropped_messages_total{reason=\"replayed\",model_name=\"tiny\"} 6",
        "baton_kv_transfer_thread_seconds_total{thread=\"transfer\",model_name=\"tiny\"} 0.007"}) {
    EXPECT_TRUE(lines.contains(line)) << line;
  }
}

TEST(WorkerMetrics, HandoffsAreCountedBySideAndEnd) {
  WorkerMetrics metrics("tiny");
  metrics.OnHandoffEnd(PrefillHandoffState::kReleased);
  metrics.OnHandoffEnd(PrefillHandoffState::kExpired);
  metrics.OnHandoffEnd(DecodeHandoffState::kFailed);
  metrics.OnHandoffEnd(DecodeHandoffState::kDone);
  metrics.OnHandoffEnd(DecodeHandoffState::kDone);
  metrics.OnTransfer(1 << 20);
  const std::set<std::string> lines = Lines(metrics, {});
  for (const char* line :
       {"baton_kv_handoffs_total{side=\"prefill\",end=\"released\",model_name=\"tiny\"} 1",
        "baton_kv_handoffs_total{side=\"prefill\",end=\"expired\",model_name=\"tiny\"} 1",
        "baton_kv_handoffs_total{side=\"prefill\",end=\"failed\",model_name=\"tiny\"} 0",
        "baton_kv_handoffs_total{side=\"decode\",end=\"done\",model_name=\"tiny\"} 2",
        "baton_kv_handoffs_total{side=\"decode\",end=\"failed\",model_name=\"tiny\"} 1",
        "baton_kv_transfer_bytes_bucket{model_name=\"tiny\",le=\"1048576\"} 1",
        "baton_kv_transfer_bytes_bucket{model_name=\"tiny\",le=\"262144\"} 0"}) {
    EXPECT_TRUE(lines.contains(line)) << line;
  }
}

// A decode worker has the requests too.
TEST(WorkerMetrics, RequestsAreThoseOfADecodeWorker) {
  const WorkerMetrics metrics("tiny");
  const RequestMeter requests;
  const char* const line = "vllm:time_to_first_token_seconds_count{model_name=\"tiny\"} 0";
  EXPECT_TRUE(Lines(metrics, {}, {}, &requests).contains(line));
  EXPECT_FALSE(Lines(metrics, {}).contains(line));
}

TEST(WorkerMetrics, BucketsCountWhatIsAtMostTheirBound) {
  WorkerMetrics metrics("tiny");
  metrics.OnStep({.duration = milliseconds(10), .prefill_rows = 8});
  metrics.OnStep({.duration = microseconds(10'001), .prefill_rows = 9});
  metrics.OnStep({.duration = std::chrono::seconds(60), .prefill_rows = 100'000});
  metrics.OnStep({.duration = microseconds(1)});  // admitted something, computed nothing

  const std::set<std::string> lines = Lines(metrics, {});
  for (const char* line : {"baton_step_seconds_bucket{model_name=\"tiny\",le=\"0.005\"} 1",
                           "baton_step_seconds_bucket{model_name=\"tiny\",le=\"0.01\"} 2",
                           "baton_step_seconds_bucket{model_name=\"tiny\",le=\"0.02\"} 3",
                           "baton_step_seconds_bucket{model_name=\"tiny\",le=\"10\"} 3",
                           "baton_step_seconds_bucket{model_name=\"tiny\",le=\"+Inf\"} 4",
                           "vllm:iteration_tokens_total_bucket{model_name=\"tiny\",le=\"1\"} 0",
                           "vllm:iteration_tokens_total_bucket{model_name=\"tiny\",le=\"8\"} 1",
                           "vllm:iteration_tokens_total_bucket{model_name=\"tiny\",le=\"16\"} 2",
                           "vllm:iteration_tokens_total_bucket{model_name=\"tiny\",le=\"8192\"} 2",
                           "vllm:iteration_tokens_total_bucket{model_name=\"tiny\",le=\"+Inf\"} 3",
                           "vllm:iteration_tokens_total_sum{model_name=\"tiny\"} 100017"}) {
    EXPECT_TRUE(lines.contains(line)) << line;
  }
}

TEST(WorkerMetrics, GaugesAreTheLoadOfTheMoment) {
  const WorkerMetrics metrics("tiny");
  const EngineLoad load{.total_blocks = 40,
                        .free_blocks = 10,
                        .waiting = 3,
                        .running = 2,
                        .prefix_query_tokens = 100,
                        .prefix_hit_tokens = 48};

  const std::set<std::string> lines = Lines(metrics, load);
  for (const char* line :
       {"vllm:num_requests_running{model_name=\"tiny\"} 2",
        "vllm:num_requests_waiting{model_name=\"tiny\"} 3",
        "vllm:kv_cache_usage_perc{model_name=\"tiny\"} 0.75",
        "vllm:prefix_cache_queries_total{model_name=\"tiny\"} 100",
        "vllm:prefix_cache_hits_total{model_name=\"tiny\"} 48",
        "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"40\",model_name=\"tiny\"} 1"}) {
    EXPECT_TRUE(lines.contains(line)) << line;
  }
}

// B53, B54: nothing that a step or a client brings makes a new series.
TEST(WorkerMetrics, TheNumberOfSeriesIsFixed) {
  WorkerMetrics metrics("a \"model\"\nwith a strange name");
  const std::size_t before = Lines(metrics, {}).size();
  for (int i = 0; i < 1000; ++i) {
    metrics.OnStep({.duration = microseconds(i), .prefill_rows = i, .sampled_tokens = i});
  }
  EXPECT_EQ(Lines(metrics, {}).size(), before);
}

}  // namespace
}  // namespace baton
