#include "bench/load_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bench/report_page.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

LoadRun TwoKinds() {
  LoadRun run;
  for (int i = 0; i < 4; ++i) {
    RequestRecord record{.kind = i == 3 ? "long" : "chat", .scheduled = milliseconds(100 * i)};
    record.prompt_tokens = 10;
    for (int token = 0; token < 3; ++token) {
      record.token_times.push_back(record.scheduled + milliseconds(50 + 20 * token));
    }
    record.ended = record.token_times.back();
    run.records.push_back(std::move(record));
  }
  run.records[1].status = absl::UnavailableError("a < b");
  return run;
}

LoadSettings Settings() {
  return {.server = "127.0.0.1:1", .model = "m", .workload = "mixed", .arrivals = "poisson"};
}

TEST(LoadJson, UsesTheNamesOfVllmBenchServe) {
  const nlohmann::ordered_json json = LoadJson(TwoKinds(), Settings(), /*details=*/true);

  for (const char* member : {"date",
                             "endpoint_type",
                             "backend",
                             "label",
                             "model_id",
                             "num_prompts",
                             "request_rate",
                             "burstiness",
                             "duration",
                             "completed",
                             "failed",
                             "total_input_tokens",
                             "total_output_tokens",
                             "request_throughput",
                             "request_goodput",
                             "output_throughput",
                             "total_token_throughput",
                             "mean_ttft_ms",
                             "median_ttft_ms",
                             "std_ttft_ms",
                             "p99_ttft_ms",
                             "mean_tpot_ms",
                             "median_tpot_ms",
                             "std_tpot_ms",
                             "p99_tpot_ms",
                             "mean_itl_ms",
                             "median_itl_ms",
                             "std_itl_ms",
                             "p99_itl_ms",
                             "mean_e2el_ms",
                             "median_e2el_ms",
                             "std_e2el_ms",
                             "p99_e2el_ms",
                             "input_lens",
                             "output_lens",
                             "ttfts",
                             "itls",
                             "errors"}) {
    EXPECT_TRUE(json.contains(member)) << member;
  }
  EXPECT_EQ(json["completed"], 3);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_DOUBLE_EQ(json["median_ttft_ms"].get<double>(), 50);
  EXPECT_DOUBLE_EQ(json["ttfts"][0].get<double>(), 0.05);
  EXPECT_EQ(json["errors"][1], "a < b");
  EXPECT_EQ(json["by_kind"]["long"]["completed"], 1);
}

TEST(LoadTable, ShowsKindsAndFailures) {
  const std::string table = LoadTable(TwoKinds(), Settings());

  EXPECT_THAT(table, HasSubstr("all: 4 requests, 1 failed"));
  EXPECT_THAT(table, HasSubstr("long: 1 requests"));
  EXPECT_THAT(table, HasSubstr("1 failed: a < b"));
}

TEST(LoadPage, IsOneDocumentWithPlots) {
  const std::string page = LoadPage(TwoKinds(), Settings());

  EXPECT_THAT(page, HasSubstr("<svg"));
  EXPECT_THAT(page, HasSubstr("Time between tokens"));
  EXPECT_THAT(page, HasSubstr("</html>"));
}

TEST(ReportPage, EscapesText) {
  ReportPage page("a & b");
  page.Table({{"x"}, {"1 < 2"}});

  const std::string html = page.Finish();

  EXPECT_THAT(html, HasSubstr("<h1>a &amp; b</h1>"));
  EXPECT_THAT(html, HasSubstr("<td>1 &lt; 2</td>"));
}

}  // namespace
}  // namespace baton
