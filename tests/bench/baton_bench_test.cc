// Runs the program baton-bench itself, against a server whose delays are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr Duration kPatience = std::chrono::seconds(60);

struct Ended {
  int code = -1;
  std::string output;
  std::string errors;
};

Ended RunBench(const std::vector<std::string>& arguments) {
  auto process = ChildProcess::Start(ProgramPath("baton-bench"), arguments);
  EXPECT_TRUE(process.ok()) << process.status();
  const std::optional<ProcessEnd> end = (*process)->WaitForEnd(kPatience);
  EXPECT_TRUE(end.has_value());
  return {.code = end.has_value() ? end->code.value_or(-1) : -1,
          .output = (*process)->ReadRest(),
          .errors = (*process)->ErrorOutput()};
}

class BatonBenchRun : public ::testing::Test {
 protected:
  void SetUp() override {
    auto process = ChildProcess::Start(FAKE_SERVER, {"30000", "30000", "10000", "10000"});
    ASSERT_TRUE(process.ok()) << process.status();
    fake_ = *std::move(process);
    const auto ready = fake_->ReadLine(kPatience);
    ASSERT_TRUE(ready.ok()) << ready.status();
    server_ = ready->substr(ready->find("grpc=") + 5);
  }

  std::string server_;

 private:
  std::unique_ptr<ChildProcess> fake_;
};

TEST_F(BatonBenchRun, PrintsOneJsonObjectAndNothingElse) {
  const Ended end = RunBench({"run", "--server", server_, "--requests", "30", "--rate", "100",
                              "--output-tokens", "4", "--json", "-", "--details"});

  ASSERT_EQ(end.code, 0) << end.errors;
  const auto json = nlohmann::json::parse(end.output);
  EXPECT_EQ(json["completed"], 30);
  EXPECT_EQ(json["model_id"], "fake");
  EXPECT_EQ(json["total_output_tokens"], 120);
  EXPECT_GE(json["p50_ttft_ms"], 30);
  EXPECT_EQ(json["itls"][0].size(), 3);
}

TEST_F(BatonBenchRun, WritesAReportAndTheTable) {
  const std::string page = ::testing::TempDir() + "/baton_bench_report.html";
  const Ended end =
      RunBench({"run", "--server", server_, "--workload", "mixed", "--requests", "20", "--rate",
                "40", "--prompt-tokens", "16", "--output-tokens", "3", "--html", page});

  ASSERT_EQ(end.code, 0) << end.errors;
  EXPECT_THAT(end.output, HasSubstr("first token"));
  std::stringstream text;
  text << std::ifstream(page).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("</html>"));
  std::filesystem::remove(page);
}

TEST_F(BatonBenchRun, ReplaysATraceAtTheRateAsked) {
  const Ended end =
      RunBench({"run", "--server", server_, "--workload", "trace", "--trace",
                "bench/traces/mooncake_conversation.jsonl", "--length-divisor", "32", "--requests",
                "40", "--rate", "80", "--arrivals", "trace", "--json", "-"});

  ASSERT_EQ(end.code, 0) << end.errors;
  const auto json = nlohmann::json::parse(end.output);
  EXPECT_EQ(json["completed"], 40);
  EXPECT_EQ(json["label"], "mooncake_conversation.jsonl");
}

TEST_F(BatonBenchRun, FailsWhenEveryRequestFails) {
  const Ended end = RunBench({"run", "--server", server_, "--path", "colocated", "--requests", "3",
                              "--rate", "100", "--output-tokens", "2"});

  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.errors, HasSubstr("every request failed: as asked"));
}

TEST(BatonBench, WrongUsageIsNamed) {
  EXPECT_EQ(RunBench({}).code, 2);
  const Ended trace = RunBench({"run", "--workload", "trace", "--length-divisor", "3"});
  EXPECT_EQ(trace.code, 2);
  EXPECT_THAT(trace.errors, HasSubstr("--trace"));
  const Ended compare = RunBench({"compare", "--quick"});
  EXPECT_EQ(compare.code, 2);
  EXPECT_THAT(compare.errors, HasSubstr("--out"));
}

TEST(BatonBench, MissingFilesAndServersAreNamed) {
  const Ended gone = RunBench({"run", "--server", "127.0.0.1:1"});
  EXPECT_EQ(gone.code, 1);
  const std::string out = ::testing::TempDir() + "/baton_bench_out";
  const Ended compare =
      RunBench({"compare", "--quick", "--out", out, "--traces", "no/such/folder"});
  EXPECT_EQ(compare.code, 1);
  EXPECT_THAT(compare.errors, HasSubstr("no/such/folder"));
  std::filesystem::remove_all(out);
}

}  // namespace
}  // namespace baton
