// Runs router-bench: what it prints, and what of it does not depend on the machine; never how fast.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "bench/measured_child.h"
#include "bench/router_report.h"

namespace baton {
namespace {

using Json = nlohmann::json;

ChildResult RunRouterBench(std::vector<std::string> arguments, const char* traces = TRACES) {
  arguments.insert(arguments.begin(), {ROUTER_BENCH, "--rates", RATES, "--traces", traces});
  return *RunProgram(arguments, std::chrono::minutes(3));
}

// The known shares of reused blocks; and with bounded caches prefix has twice the hits of
// round-robin, which keeps less than half of what is possible, and answers sooner.
TEST(RouterBench, ReplaysTheTraces) {
  const ChildResult result = RunRouterBench({"--only", "traces", "--json"});
  ASSERT_EQ(result.code, 0) << result.errors;
  const Json json = Json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << result.output;
  struct Expected {
    double possible;
    double speedup;
  };
  const std::map<std::string, Expected> expected = {{"mooncake_conversation", {0.3664, 1.2}},
                                                    {"mooncake_synthetic", {0.6396, 1.8}}};
  ASSERT_EQ(json.at("traces").size(), 8u);
  for (const Json& trace : json["traces"]) {
    SCOPED_TRACE(trace.dump());
    const Expected& known = expected.at(trace.at("name").get<std::string>());
    const double hits = trace.at("hit_rate").get<double>();
    const double other_hits = trace.at("hit_rate_round_robin").get<double>();
    if (trace.at("load") == "unlimited") {
      EXPECT_NEAR(hits, known.possible, 0.00005);
      EXPECT_NEAR(other_hits, known.possible, 0.00005);
      EXPECT_TRUE(trace.at("blocks_per_worker").is_null());
      continue;
    }
    EXPECT_EQ(trace.at("workers"), 8);
    EXPECT_LT(other_hits, known.possible / 2);
    EXPECT_GE(hits, 2 * other_hits);
    EXPECT_LE(hits, known.possible);
    EXPECT_GE(trace.at("mean_ttft_round_robin_s").get<double>(),
              known.speedup * trace.at("mean_ttft_s").get<double>());
    EXPECT_LE(trace.at("largest_share").get<double>(), 1.5);
  }
}

TEST(RouterBench, TimesDecisions) {
  const ChildResult result = RunRouterBench({"--only", "decisions", "--json", "--decode-workers",
                                             "20", "--prefill-workers", "10", "--indexed-blocks",
                                             "200000", "--decisions", "300"});
  ASSERT_EQ(result.code, 0) << result.errors;
  const Json json = Json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << result.output;
  for (const char* name :
       {"decision_p50_us", "decision_p99_us", "decision_clock_p50_us", "decision_clock_p99_us",
        "decision_quiet_p50_us", "decision_quiet_p99_us", "decision_with_updates_p50_us",
        "decision_with_updates_p99_us", "machine_p50_us", "machine_p99_us", "updates_per_s",
        "match_us", "hash_us"}) {
    EXPECT_GT(json.at(name).get<double>(), 0) << name;
  }
  EXPECT_GT(json.at("index_bytes_per_entry").get<double>(), 20);
  EXPECT_LE(json.at("index_bytes_per_entry").get<double>(), 64);
  EXPECT_GT(json.at("index_blocks").get<int>(), 200'000);
  EXPECT_TRUE(json.at("traces").empty());
}

TEST(RouterBench, SaysWhatIsWrong) {
  EXPECT_EQ(RunRouterBench({"--help"}).code, 0);
  EXPECT_EQ(RunRouterBench({"--only", "everything"}).code, 2);
  const ChildResult result = RunRouterBench({"--only", "traces"}, "/nowhere");
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.errors.find("/nowhere/mooncake_conversation.jsonl"), std::string::npos)
      << result.errors;
  EXPECT_TRUE(result.output.empty());
}

TEST(RouterBench, PrintsATable) {
  TraceFigure figure{.name = "mooncake_synthetic", .load = "idle"};
  figure.prefix = {.blocks = 1000, .hit_blocks = 600, .first_token_seconds = 0.1, .busy = 0.25};
  figure.round_robin = {.blocks = 1000, .hit_blocks = 200, .first_token_seconds = 0.22};
  const std::string table = ToTable(
      {.rates_source = "a test", .decision = DecisionFigures{.hash_us = 41.5}, .traces = {figure}});
  for (const char* part : {"decision, us", "41.5", "mooncake_synthetic", "idle", "60.00%", "20.00%",
                           "3.00", "0.1000", "2.20", "25%", "a test"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << " in " << table;
  }
}

}  // namespace
}  // namespace baton
