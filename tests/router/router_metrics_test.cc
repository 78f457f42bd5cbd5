#include "router/router_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>

#include <chrono>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "frontend/metrics_server.h"
#include "tests/support/promtool.h"
#include "tests/support/scrape.h"

namespace baton {
namespace {

using std::chrono::microseconds;

v1::StatusResponse FleetStatus(int workers) {
  v1::StatusResponse status;
  status.set_role(v1::ROLE_ROUTER);
  status.set_ready(true);
  status.set_colocate_below_tokens(512);
  for (int i = 0; i < workers; ++i) {
    v1::WorkerStatus& worker = *status.add_workers();
    worker.set_address(absl::StrCat("10.0.", i / 256, ".", i % 256, ":7000"));
    worker.set_alive(i != 1);
    worker.set_problem(i == 2 ? "draining" : "");
    worker.mutable_description()->set_role(i % 2 == 0 ? v1::ROLE_DECODE : v1::ROLE_PREFILL);
  }
  auto& requests = *status.mutable_requests();
  requests["colocated/SHORT_PROMPT"] = 5;
  requests["colocated/PREFIX_CACHED"] = 7;
  requests["disaggregated/PREFILL_QUICKER"] = 11;
  requests["NOT_FOUND"] = 2;
  requests["RESOURCE_EXHAUSTED"] = 3;
  status.mutable_prefix_index()->set_entries(123);
  status.mutable_prefix_index()->set_bytes(4567);
  for (const v1::KvTier tier : {v1::KV_TIER_DEVICE, v1::KV_TIER_HOST, v1::KV_TIER_DISK}) {
    v1::PrefixIndexStatus::Tier& of_tier = *status.mutable_prefix_index()->add_tiers();
    of_tier.set_tier(tier);
    of_tier.set_entries(100 + static_cast<unsigned>(tier));
    of_tier.set_hit_tokens(160 * (1 + static_cast<unsigned>(tier)));
  }
  status.mutable_crossover()->set_known(true);
  status.mutable_crossover()->set_pays(true);
  status.mutable_crossover()->set_prompt_tokens(384);
  status.mutable_admission()->set_queued(9);
  status.mutable_admission()->set_refused(3);
  return status;
}

std::string ScrapeText(const RouterMetrics& metrics, const v1::StatusResponse& status) {
  return prometheus::TextSerializer().Serialize(
      metrics.MakeCollectable([&status] { return status; })->Collect());
}

// The sum of all samples of one name.
double SumOf(const std::string& text, const std::string& name) {
  double sum = 0;
  for (const auto line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, absl::StrCat(name, "{"))) {
      double value = 0;
      EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) << line;
      sum += value;
    }
  }
  return sum;
}

TEST(RouterMetrics, PathsReasonsAndErrorsAddUpToTheRequests) {
  const RouterMetrics metrics("tiny");
  const std::string text = ScrapeText(metrics, FleetStatus(4));
  EXPECT_EQ(SumOf(text, "baton_router_requests_total"), 23);
  EXPECT_EQ(SumOf(text, "baton_router_request_errors_total"), 5);
  for (const char* line :
       {"baton_router_requests_total{path=\"colocated\",reason=\"PREFIX_CACHED\",model_name="
        "\"tiny\"} 7\n",
        "baton_router_requests_total{path=\"disaggregated\",reason=\"PREFILL_QUICKER\",model_name="
        "\"tiny\"} 11\n",
        "baton_router_request_errors_total{code=\"NOT_FOUND\",model_name=\"tiny\"} 2\n",
        "baton_worker_up{worker=\"10.0.0.0:7000\",role=\"decode\",model_name=\"tiny\"} 1\n",
        "baton_worker_up{worker=\"10.0.0.1:7000\",role=\"prefill\",model_name=\"tiny\"} 0\n",
        "baton_worker_up{worker=\"10.0.0.2:7000\",role=\"decode\",model_name=\"tiny\"} 0\n",
        "baton_router_prefix_index_bytes{model_name=\"tiny\"} 4567\n",
        "baton_router_prefix_index_entries{model_name=\"tiny\"} 123\n",
        "baton_router_prefix_index_tier_entries{tier=\"device\",model_name=\"tiny\"} 100\n",
        "baton_router_prefix_index_tier_entries{tier=\"host\",model_name=\"tiny\"} 101\n",
        "baton_router_prefix_index_tier_entries{tier=\"disk\",model_name=\"tiny\"} 102\n",
        "baton_router_prefix_tier_hit_tokens_total{tier=\"device\",model_name=\"tiny\"} 160\n",
        "baton_router_prefix_tier_hit_tokens_total{tier=\"disk\",model_name=\"tiny\"} 480\n",
        "baton_router_crossover_tokens{model_name=\"tiny\"} 384\n",
        "baton_router_queued_requests{model_name=\"tiny\"} 9\n",
        "baton_router_refused_total{model_name=\"tiny\"} 3\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

TEST(RouterMetrics, ACrossoverThatIsNotKnownHasNoSample) {
  const RouterMetrics metrics("tiny");
  v1::StatusResponse status = FleetStatus(1);
  status.mutable_crossover()->set_pays(false);
  const std::string text = ScrapeText(metrics, status);
  EXPECT_EQ(text.find("baton_router_crossover_tokens{"), std::string::npos);
  EXPECT_NE(text.find("baton_router_crossover_known{model_name=\"tiny\"} 1\n"), std::string::npos);
}

TEST(RouterMetrics, DecisionsAreMeasured) {
  RouterMetrics metrics("tiny");
  metrics.OnDecision(microseconds(30), 0);
  metrics.OnDecision(microseconds(80), 100);
  const std::string text = ScrapeText(metrics, FleetStatus(1));
  for (const char* line :
       {"baton_router_decision_seconds_count{model_name=\"tiny\"} 2\n",
        "baton_router_decision_seconds_bucket{model_name=\"tiny\",le=\"5e-05\"} 1\n",
        "baton_router_prefix_match_blocks_bucket{model_name=\"tiny\",le=\"0\"} 1\n",
        "baton_router_prefix_match_blocks_sum{model_name=\"tiny\"} 100\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

// B53 to B55: what clients and restarts bring makes no series that stay.
TEST(RouterMetrics, TheNumberOfSeriesIsThatOfTheFleet) {
  const RouterMetrics metrics("tiny");
  const auto series = [&metrics](const v1::StatusResponse& status) {
    const std::vector<std::string> lines = absl::StrSplit(ScrapeText(metrics, status), '\n');
    return lines.size();
  };
  const std::size_t before = series(FleetStatus(4));
  for (int restart = 0; restart < 100; ++restart) {
    v1::StatusResponse status = FleetStatus(4);
    for (v1::WorkerStatus& worker : *status.mutable_workers()) {
      worker.set_address(absl::StrCat(worker.address(), restart));
    }
    ASSERT_EQ(series(status), before);
  }
  EXPECT_EQ(series(FleetStatus(3)), before - 1);
}

TEST(RouterMetrics, PromtoolHasNothingToSay) {
  RouterMetrics metrics("tiny");
  metrics.OnDecision(microseconds(30), 7);
  const auto complaints = LintMetrics(ScrapeText(metrics, FleetStatus(4)));
  if (absl::IsNotFound(complaints.status())) {
    GTEST_SKIP() << complaints.status();
  }
  ASSERT_TRUE(complaints.ok()) << complaints.status();
  EXPECT_THAT(*complaints, testing::IsEmpty());
}

// F54: a hundred scrapes a second of a fleet of a thousand, beside a scraper that reads nothing.
TEST(RouterMetrics, ScrapesAreCheap) {
  const RouterMetrics metrics("tiny");
  const v1::StatusResponse status = FleetStatus(1000);
  const auto server =
      *MetricsServer::Start("127.0.0.1:0", "", metrics.MakeCollectable([&] { return status; }));
  const auto idle = ConnectLocally(server->address());
  ASSERT_TRUE(idle.ok()) << idle.status();
  constexpr int kScrapes = 100;
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kScrapes; ++i) {
    const auto samples = Scrape(server->address());
    ASSERT_TRUE(samples.ok()) << samples.status();
    ASSERT_EQ(samples->count("baton_worker_up{worker=\"10.0.3.231:7000\",role=\"prefill\",model_"
                             "name=\"tiny\"}"),
              1u);
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double processor_ms = 1e3 * static_cast<double>(after.tv_sec - before.tv_sec) +
                              1e-6 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  std::printf("a scrape of 1000 workers: %.2f ms, %.2f ms of processor time with the reader's\n",
              took.count() / kScrapes, processor_ms / kScrapes);
  EXPECT_LT(took.count() / kScrapes, 100) << "a hundred a second are no burden";
}

}  // namespace
}  // namespace baton
