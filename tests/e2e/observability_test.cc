// What the three programs tell those who run them: spans of one trace, metrics that promtool takes,
// counters that add up.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "proto/status_conversion.h"
#include "tests/support/cluster.h"
#include "tests/support/health_client.h"
#include "tests/support/promtool.h"
#include "tests/support/scrape.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

using nlohmann::json;

const std::string kTraceId = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kCallersSpan = "00f067aa0ba902b7";

v1::CompleteRequest Request(std::uint64_t seed, v1::Path path) {
  return GreedyRequest(TinyPrompt(seed, 600), 8, path);
}

// One request with metadata, as the client of a caller that traces.
absl::StatusOr<v1::CompleteResponse> Complete(const std::string& address,
                                              const v1::CompleteRequest& request,
                                              const std::string& traceparent) {
  const auto stub =
      v1::Completions::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  if (!traceparent.empty()) {
    context.AddMetadata("traceparent", traceparent);
  }
  v1::CompleteResponse response;
  const absl::Status status = FromGrpcStatus(stub->Complete(&context, request, &response));
  if (!status.ok()) {
    return status;
  }
  return response;
}

// The spans of a file that is still written to: whole lines only.
std::vector<json> ReadSpans(const std::string& path) {
  std::vector<json> spans;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const json event = json::parse(line);
    if (event.at("kind") == "span") {
      spans.push_back(event);
    }
  }
  return spans;
}

class Traces {
 public:
  // Reads the files until `count` spans are there.
  bool Await(const std::vector<std::string>& paths, std::size_t count) {
    return WaitUntil([&] {
      spans.clear();
      for (const std::string& path : paths) {
        const std::vector<json> more = ReadSpans(path);
        spans.insert(spans.end(), more.begin(), more.end());
      }
      return spans.size() >= count;
    });
  }
  const json& Named(const std::string& name) const {
    for (const json& span : spans) {
      if (span.at("name") == name) {
        return span;
      }
    }
    ADD_FAILURE() << "no span " << name;
    static const json kNone;
    return kNone;
  }

  std::vector<json> spans;
};

TEST(Traces, OneRequestIsOneTraceThroughAllProcesses) {
  TemporaryFolder folder;
  const auto path = [&folder](const char* name) {
    return (folder.path() / absl::StrCat(name, ".jsonl")).string();
  };
  ClusterOptions options{.router_flags = {"--trace-file", path("router")}};
  options.decode_flags = {"--trace-file", path("decode")};
  options.prefill_flags = {"--trace-file", path("prefill")};
  auto cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const auto response = Complete((*cluster)->router().address(), Request(1, v1::PATH_DISAGGREGATED),
                                 absl::StrCat("00-", kTraceId, "-", kCallersSpan, "-01"));
  ASSERT_TRUE(response.ok()) << response.status();
  Traces traces;
  ASSERT_TRUE(traces.Await({path("router"), path("decode"), path("prefill")}, 5))
      << traces.spans.size();

  const json& router = traces.Named("router.request");
  const json& decode = traces.Named("decode.request");
  const json& handoff = traces.Named("decode.handoff");
  const json& prefill = traces.Named("prefill.request");
  const json& transfer = traces.Named("kv.transfer");
  EXPECT_EQ(router.at("parent_span_id"), kCallersSpan);
  EXPECT_EQ(decode.at("parent_span_id"), router.at("span_id"));
  EXPECT_EQ(handoff.at("parent_span_id"), decode.at("span_id"));
  EXPECT_EQ(prefill.at("parent_span_id"), handoff.at("span_id"));
  EXPECT_EQ(transfer.at("parent_span_id"), handoff.at("span_id"));
  EXPECT_EQ(router.at("service"), "baton-router");
  EXPECT_EQ(decode.at("service"), "baton-decode");
  EXPECT_EQ(prefill.at("service"), "baton-prefill");
  for (const json& span : traces.spans) {
    SCOPED_TRACE(span.dump());
    EXPECT_EQ(span.at("trace_id"), kTraceId);
    EXPECT_EQ(span.at("status"), "OK");
    // One machine, one clock: what is asked for lies inside the request, to a millisecond.
    constexpr std::int64_t kSlack = 1'000'000;
    EXPECT_GE(span.at("start_time_unix_nano").get<std::int64_t>(),
              router.at("start_time_unix_nano").get<std::int64_t>() - kSlack);
    EXPECT_LE(span.at("start_time_unix_nano").get<std::int64_t>(),
              router.at("end_time_unix_nano").get<std::int64_t>() + kSlack);
  }
  const json& attributes = router.at("attributes");
  EXPECT_EQ(attributes.at("gen_ai.usage.prompt_tokens"), 600);
  EXPECT_EQ(attributes.at("gen_ai.usage.completion_tokens"), 8);
  EXPECT_EQ(attributes.at("baton.path"), "PATH_DISAGGREGATED");
  const v1::Timeline& timeline = response->timeline();
  EXPECT_DOUBLE_EQ(
      attributes.at("gen_ai.latency.time_to_first_token"),
      std::chrono::duration<double>(FromProtoDuration(timeline.time_to_first_token())).count());
  EXPECT_GT(transfer.at("attributes").at("baton.bytes"), 0);
  EXPECT_EQ(transfer.at("attributes").at("baton.transport"), timeline.transport());
}

TEST(Traces, ARequestWithoutOneBeginsATrace) {
  TemporaryFolder folder;
  const std::string router_file = (folder.path() / "router.jsonl").string();
  const std::string decode_file = (folder.path() / "decode.jsonl").string();
  ClusterOptions options{.router_flags = {"--trace-file", router_file}};
  options.decode_flags = {"--trace-file", decode_file};
  auto cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (const char* traceparent : {"", "00-not-a-trace"}) {
    ASSERT_TRUE(
        Complete((*cluster)->router().address(), Request(2, v1::PATH_COLOCATED), traceparent).ok());
  }
  Traces traces;
  ASSERT_TRUE(traces.Await({router_file, decode_file}, 4));
  std::set<std::string> ids;
  for (const json& span : traces.spans) {
    ids.insert(span.at("trace_id"));
    EXPECT_EQ(span.contains("parent_span_id"), span.at("name") == "decode.request");
  }
  EXPECT_EQ(ids.size(), 2u) << "a trace each";
}

std::string ScrapeText(const ServerProcess& server) {
  const auto answer = HttpGet(server.Door("metrics"), "/metrics");
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? answer->substr(answer->find("\r\n\r\n") + 4) : "";
}

double SumOf(const std::string& text, const std::string& name) {
  double sum = 0;
  for (const auto line : absl::StrSplit(text, '\n')) {
    double value = 0;
    if (absl::StartsWith(line, absl::StrCat(name, "{")) &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      sum += value;
    }
  }
  return sum;
}

// The names and labels of all samples.
std::string SeriesOf(const std::string& text) {
  std::string series;
  for (const auto line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, "#")) {
      absl::StrAppend(&series, line.substr(0, line.rfind(' ')), "\n");
    }
  }
  return series;
}

grpc::StatusCode CallUnknown(const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& method) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  grpc::StatusCode code = grpc::StatusCode::OK;
  absl::Notification done;
  stub.UnaryCall(&context, method, {}, &request, &response, [&](const grpc::Status& status) {
    code = status.error_code();
    done.Notify();
  });
  done.WaitForNotification();
  return code;
}

class MetricsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto cluster = Cluster::Start({.worker_flags = {"--metrics-listen", "127.0.0.1:0"},
                                   .router_flags = {"--metrics-listen", "127.0.0.1:0"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  std::unique_ptr<Cluster> cluster_;
};

TEST_F(MetricsTest, PromtoolHasNothingToSay) {
  ASSERT_TRUE(cluster_->client().Complete(Request(3, v1::PATH_DISAGGREGATED)).ok());
  for (const ServerProcess* server :
       {&cluster_->router(), &cluster_->decode(), &cluster_->prefill()}) {
    SCOPED_TRACE(server->address());
    const auto complaints = LintMetrics(ScrapeText(*server));
    if (absl::IsNotFound(complaints.status())) {
      GTEST_SKIP() << complaints.status();
    }
    ASSERT_TRUE(complaints.ok()) << complaints.status();
    EXPECT_THAT(*complaints, testing::IsEmpty());
  }
}

TEST_F(MetricsTest, TheRoutersCountersAddUpToTheRequests) {
  constexpr int kGood = 6;
  for (int i = 0; i < kGood; ++i) {
    const v1::Path path = i % 2 == 0 ? v1::PATH_COLOCATED : v1::PATH_DISAGGREGATED;
    ASSERT_TRUE(
        cluster_->client().Complete(Request(static_cast<std::uint64_t>(10 + i), path)).ok());
  }
  const std::string before = ScrapeText(cluster_->router());
  // B53: a thousand unknown models, no label and no success of theirs; a decode worker that is
  // asked directly counts none of them, for none gets as far as its requests.
  const std::string decode_before = SeriesOf(ScrapeText(cluster_->decode()));
  const CompletionsClient decode(cluster_->decode().address());
  constexpr int kBad = 1000;
  for (int i = 0; i < kBad; ++i) {
    v1::CompleteRequest request = Request(20, v1::PATH_UNSPECIFIED);
    request.set_model(absl::StrCat("model-", i));
    EXPECT_EQ(cluster_->client().Complete(request).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(decode.Complete(request).status().code(), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(SeriesOf(ScrapeText(cluster_->decode())), decode_before);
  const std::string after = ScrapeText(cluster_->router());
  EXPECT_EQ(SumOf(after, "baton_router_requests_total"), kGood);
  EXPECT_EQ(SumOf(after, "baton_router_request_errors_total"), kBad);
  EXPECT_EQ(SumOf(after, "vllm:request_success_total"), kGood);
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_LE(lines(after) - lines(before), 1) << "the code NOT_FOUND, once";
  EXPECT_EQ(after.find("model-"), std::string::npos);
}

// B54, B55: what a scanner tries leaves no trace in what is measured: paths of the metrics' door,
// methods of the gRPC door, and the names that it calls the server by.
TEST_F(MetricsTest, PathsAndNamesThatClientsInventMakeNoSeries) {
  ASSERT_TRUE(cluster_->client().Complete(Request(30, v1::PATH_COLOCATED)).ok());
  const std::vector<const ServerProcess*> servers = {&cluster_->router(), &cluster_->decode(),
                                                     &cluster_->prefill()};
  // The first of each kind may make a series: that of its status code.
  const auto scan = [&](int from, int to) {
    for (int i = from; i < to; ++i) {
      for (const ServerProcess* server : servers) {
        const auto answer =
            HttpGet(server->Door("metrics"), absl::StrCat("/scanned-", i, "?x=", i));
        ASSERT_TRUE(answer.ok()) << answer.status();
        EXPECT_FALSE(absl::StrContains(answer->substr(0, answer->find('\r')), " 200 ")) << *answer;
        grpc::ChannelArguments arguments;
        arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, absl::StrCat("scanned-", i, ".test"));
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        const auto channel = grpc::CreateCustomChannel(
            server->address(), grpc::InsecureChannelCredentials(), arguments);
        EXPECT_EQ(CallUnknown(channel, absl::StrCat("/scanned.Service/Method", i)),
                  grpc::StatusCode::UNIMPLEMENTED);
        EXPECT_EQ(HealthOf(channel, ""), "SERVING");
        if (server == &cluster_->router()) {
          grpc::ClientContext context;
          v1::CompleteResponse response;
          EXPECT_TRUE(v1::Completions::NewStub(channel)
                          ->Complete(&context, Request(31, v1::PATH_COLOCATED), &response)
                          .ok());
        }
      }
    }
  };
  scan(0, 1);
  std::vector<std::string> before;
  for (const ServerProcess* server : servers) {
    before.push_back(SeriesOf(ScrapeText(*server)));
  }
  scan(1, 100);
  for (std::size_t i = 0; i < servers.size(); ++i) {
    const std::string after = ScrapeText(*servers[i]);
    EXPECT_EQ(SeriesOf(after), before[i]);
    EXPECT_EQ(after.find("scanned"), std::string::npos);
  }
}

// T46, B33: a client that leaves is counted as one, at the router and at the worker, and nobody
// goes on for it.
TEST_F(MetricsTest, ACancelledRequestIsCountedAsCancelled) {
  v1::CompleteRequest request = Request(32, v1::PATH_COLOCATED);
  request.set_max_tokens(10'000);
  const auto stream = cluster_->client().Stream(request);
  ASSERT_TRUE(stream->WaitForTokens(5));
  stream->Cancel();
  EXPECT_EQ(stream->WaitForEnd()->code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(cluster_->WaitUntilIdle());
  EXPECT_LT(cluster_->decode().Load().decoded_tokens(), 5'000u);
  for (const ServerProcess* server : {&cluster_->router(), &cluster_->decode()}) {
    SCOPED_TRACE(server->address());
    const auto counted = [&](const std::string& text, const char* sample) {
      return absl::StrContains(text, sample);
    };
    EXPECT_TRUE(WaitUntil([&] {
      return counted(ScrapeText(*server), "{finished_reason=\"abort\",model_name=\"tiny\"} 1\n");
    }));
    const std::string text = ScrapeText(*server);
    EXPECT_EQ(SumOf(text, "vllm:request_success_total"), 1) << "and as nothing else";
    EXPECT_TRUE(
        counted(text, "baton_request_errors_total{code=\"CANCELLED\",model_name=\"tiny\"} 1"))
        << text;
  }
}

// B57: the router's histogram against the time lines that the client was given.
TEST_F(MetricsTest, TheFirstTokensTimeIsTheClients) {
  double client_seconds = 0;
  constexpr int kRequests = 10;
  for (int i = 0; i < kRequests; ++i) {
    const auto response = cluster_->client().Complete(
        Request(static_cast<std::uint64_t>(40 + i), v1::PATH_UNSPECIFIED));
    ASSERT_TRUE(response.ok()) << response.status();
    client_seconds +=
        std::chrono::duration<double>(FromProtoDuration(response->timeline().time_to_first_token()))
            .count();
  }
  const std::string text = ScrapeText(cluster_->router());
  EXPECT_EQ(SumOf(text, "vllm:time_to_first_token_seconds_count"), kRequests);
  EXPECT_NEAR(SumOf(text, "vllm:time_to_first_token_seconds_sum"), client_seconds,
              0.2 * client_seconds);
  EXPECT_EQ(SumOf(ScrapeText(cluster_->decode()), "vllm:time_to_first_token_seconds_count"),
            kRequests);
}

}  // namespace
}  // namespace baton
