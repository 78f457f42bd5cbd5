// Where the time goes, asked of real workers: metrics over a socket, traces from the disk.

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/cluster.h"
#include "tests/support/scrape.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr std::size_t kPromptTokens = 600;  // several chunks
constexpr int kOutputTokens = 30;

v1::CompleteRequest Request(v1::Path path) {
  const auto seed = static_cast<std::uint64_t>(path);  // no two prompts share a beginning
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(seed, kPromptTokens), kOutputTokens, path);
  request.set_ignore_eos(true);
  return request;
}

// Counters of one worker, without the label that all have.
class WorkerCounters {
 public:
  explicit WorkerCounters(const ServerProcess& worker) : address_(worker.Door("metrics")) {}

  double Get(const std::string& name, const std::string& label = "") const {
    const auto samples = Scrape(address_);
    EXPECT_TRUE(samples.ok()) << samples.status();
    if (samples.ok()) {
      for (const auto& [sample, value] : *samples) {
        if (sample.starts_with(name + "{" + label)) {
          return value;
        }
      }
      ADD_FAILURE() << "no " << name << " with " << label;
    }
    return NAN;
  }
  // An answer leaves before its last step is counted.
  bool WaitFor(const std::string& name, double value) const {
    return WaitUntil([&] { return Get(name) == value; });
  }

 private:
  const std::string address_;
};

// What the metrics of all workers add up to is what the client was given, on either path.
TEST(Profiling, CountersMoveByTheTokensOfEachRequest) {
  auto cluster = Cluster::Start({.worker_flags = {"--metrics-listen", "127.0.0.1:0"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const WorkerCounters decode((*cluster)->decode());
  const WorkerCounters prefill((*cluster)->prefill());
  for (const WorkerCounters* worker : {&decode, &prefill}) {
    EXPECT_EQ(worker->Get("vllm:prompt_tokens_total"), 0);
    EXPECT_EQ(worker->Get("vllm:generation_tokens_total"), 0);
    EXPECT_EQ(worker->Get("baton_step_seconds_count"), 0);
    EXPECT_EQ(worker->Get("vllm:kv_cache_usage_perc"), 0);
  }

  ASSERT_TRUE((*cluster)->client().Complete(Request(v1::PATH_COLOCATED)).ok());

  EXPECT_TRUE(decode.WaitFor("vllm:generation_tokens_total", kOutputTokens));
  EXPECT_EQ(decode.Get("vllm:prompt_tokens_total"), kPromptTokens);
  EXPECT_EQ(decode.Get("baton_step_rows_total", "kind=\"prefill\""), kPromptTokens);
  EXPECT_EQ(decode.Get("baton_step_rows_total", "kind=\"decode\""), kOutputTokens - 1);
  EXPECT_EQ(decode.Get("vllm:iteration_tokens_total_sum"), kPromptTokens + kOutputTokens - 1);
  EXPECT_GT(decode.Get("baton_step_operation_seconds_total", "operation=\"mat_mul\""), 0);
  EXPECT_EQ(prefill.Get("baton_step_seconds_count"), 0);

  ASSERT_TRUE((*cluster)->client().Complete(Request(v1::PATH_DISAGGREGATED)).ok());

  EXPECT_TRUE(prefill.WaitFor("vllm:generation_tokens_total", 1));
  EXPECT_EQ(prefill.Get("vllm:prompt_tokens_total"), kPromptTokens);
  EXPECT_TRUE(decode.WaitFor("vllm:generation_tokens_total", 2 * kOutputTokens - 1));
  EXPECT_EQ(decode.Get("vllm:prompt_tokens_total"), kPromptTokens);
  EXPECT_TRUE((*cluster)->WaitUntilIdle());
}

// One decode worker that traces; its folder lives as long.
class TracingWorker {
 public:
  TracingWorker() { EXPECT_TRUE(server_.Start().ok()); }

  ServerProcess& server() { return server_; }
  std::string Content() const {
    std::ostringstream content;
    content << std::ifstream(path_).rdbuf();
    return content.str();
  }

 private:
  std::vector<std::string> Flags() const {
    std::vector<std::string> flags = TinyModel().Flags();
    flags.insert(flags.end(), {"--kv-pool-size", "32MiB", "--metrics-listen", "127.0.0.1:0",
                               "--trace-file", path_});
    return flags;
  }

  TemporaryFolder folder_;
  const std::string path_ = (folder_.path() / "steps.json").string();
  ServerProcess server_{"decode", Flags()};
};

std::int64_t Nanoseconds(const json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

Span SpanOf(const json& event) {
  const std::int64_t begin = Nanoseconds(event["ts"]);
  return {.begin = begin, .end = begin + Nanoseconds(event["dur"])};
}

TEST(Profiling, ATraceIsWholeAfterTheEndAndItsStepsHoldTheirOperations) {
  TracingWorker worker;
  const CompletionsClient client(worker.server().address());
  ASSERT_TRUE(client.Complete(Request(v1::PATH_COLOCATED)).ok());
  worker.server().process().Signal(SIGTERM);
  const auto end = worker.server().process().WaitForEnd(kPatience);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code, 0);

  const json events = json::parse(worker.Content());
  int prefill_rows = 0;
  int sampled_tokens = 0;
  int operations = 0;
  Span step;
  for (const json& event : events) {
    EXPECT_EQ(event["pid"], worker.server().process().pid());
    if (event["ph"] != "X") {
      continue;
    }
    const Span span = SpanOf(event);
    if (event["cat"] == "step" && event["name"] != "schedule") {
      EXPECT_GE(span.begin, step.end);
      step = span;
      prefill_rows += event["args"]["prefill_rows"].get<int>();
      sampled_tokens += event["args"]["sampled_tokens"].get<int>();
    } else {
      ++operations;
      EXPECT_GE(span.begin, step.begin);
      EXPECT_LE(span.end, step.end) << event;
    }
  }
  EXPECT_EQ(prefill_rows, static_cast<int>(kPromptTokens));
  EXPECT_EQ(sampled_tokens, kOutputTokens);
  EXPECT_GT(operations, 10 * kOutputTokens);
}

TEST(Profiling, AKilledWorkerLeavesALoadableTrace) {
  TracingWorker worker;
  const CompletionsClient client(worker.server().address());
  ASSERT_TRUE(client.Complete(Request(v1::PATH_COLOCATED)).ok());
  ASSERT_TRUE(
      WaitUntil([&] { return worker.Content().find("sampled_tokens") != std::string::npos; }));
  worker.server().process().Kill();

  EXPECT_GT(json::parse(worker.Content() + "]").size(), 10u);
}

// What `flag` with `value` makes of a decode worker that could start otherwise.
ProcessEnd StartAndFail(const std::string& flag, const std::string& value) {
  std::vector<std::string> flags = TinyModel().Flags();
  flags.insert(flags.end(), {"--kv-pool-size", "32MiB", flag, value});
  ServerProcess server("decode", std::move(flags));
  EXPECT_TRUE(server.Launch().ok());
  const auto end = server.process().WaitForEnd(kPatience);
  EXPECT_NE(server.process().ErrorOutput().find(value), std::string::npos)
      << server.process().ErrorOutput();
  return end.value_or(ProcessEnd{});
}

TEST(Profiling, WhatCannotBeServedOrWrittenIsAnErrorAtTheStart) {
  TracingWorker running;
  EXPECT_EQ(StartAndFail("--metrics-listen", running.server().Door("metrics")).code, 1);
  EXPECT_EQ(StartAndFail("--trace-file", "/proc/steps.json").code, 1);
}

}  // namespace
}  // namespace baton
