// A whole comparison, of servers with a tiny model: both set-ups, sweeps, the running chat, the
// crossover and the chunks, each as short as it can be.
#include "bench/compare_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "bench/compare_page.h"
#include "bench/compare_report.h"
#include "bench/cores.h"
#include "tests/support/process.h"
#include "tests/support/test_models.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

ComparePlan TinyPlan() {
  ComparePlan plan{.chunks = {64},
                   .chat_duration = std::chrono::milliseconds(800),
                   .crossover_prompts = {32, 64},
                   .crossover_outputs = {1, 4},
                   .crossover_running = {1}};
  plan.workloads.push_back({.name = "tiny",
                            .description = "tiny",
                            .stream_kind = "chat",
                            .event_kind = "long",
                            .limits = {.first_token_ms = 10'000, .inter_token_ms = 10'000},
                            .rates = {10, 20},
                            .reference_rate = 10,
                            .duration = std::chrono::seconds(1),
                            .reference_repeats = 2,
                            .make = [](double rate, Duration duration, std::uint64_t seed) {
                              return MakeMixedWorkload({.chat = {.prompt = 20, .output = 6},
                                                        .longer = {.prompt = 600, .output = 2},
                                                        .chats_per_second = rate - 2,
                                                        .long_per_second = 2,
                                                        .duration = duration},
                                                       seed);
                            }});
  return plan;
}

TEST(Comparison, MeasuresEverySetUpAndReportsIt) {
  if (PermittedCores().size() < 2) {
    GTEST_SKIP() << "a comparison needs two cores";
  }
  const TestModel model = TinyModel();
  std::vector<std::string> progress;
  const auto result = RunComparison(
      {.plan = TinyPlan(),
       .fleet = {.programs = std::filesystem::path(ProgramPath("baton-decode")).parent_path(),
                 .model = model.path,
                 .cache = model.cache,
                 .kv_pool_size = "64MiB"},
       .kv_bytes_per_token = 1024,
       .context_tokens = kTinyContext,
       .progress = [&progress](const std::string& line) { progress.push_back(line); }});
  ASSERT_TRUE(PinProcess(PermittedCores()).ok());

  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->workloads.size(), 1);
  const WorkloadRuns& runs = result->workloads[0];
  ASSERT_EQ(runs.set_ups.size(), 3);
  for (const SetUpRuns& set_up : runs.set_ups) {
    ASSERT_EQ(set_up.points.size(), 2);
    EXPECT_EQ(set_up.points[0].runs.size(), 2);
    EXPECT_EQ(set_up.points[1].runs.size(), 1);
    for (const LoadRun& run : set_up.points[0].runs) {
      for (const RequestRecord& record : run.records) {
        EXPECT_TRUE(record.ok()) << record.status;
        if (set_up.set_up != SetUp::kConditional) {
          EXPECT_EQ(record.path, set_up.set_up == SetUp::kColocated ? v1::PATH_COLOCATED
                                                                    : v1::PATH_DISAGGREGATED);
        } else {  // the router's own rule: 600 tokens are split, 20 are not
          EXPECT_EQ(record.path,
                    record.kind == "long" ? v1::PATH_DISAGGREGATED : v1::PATH_COLOCATED);
        }
        EXPECT_EQ(record.cached_prompt_tokens, 0);
      }
    }
  }
  ASSERT_EQ(runs.chunks.size(), 1);
  EXPECT_EQ(runs.chunks[0].max_batch_tokens, 64);
  EXPECT_FALSE(result->transport.empty());
  ASSERT_EQ(result->chat.colocated.size(), 1);
  ASSERT_EQ(result->chat.disaggregated.size(), 1);
  const LoadRun& chat = result->chat.disaggregated[0];
  ASSERT_EQ(chat.records.size(), 2);
  EXPECT_EQ(chat.records[0].kind, "chat");
  EXPECT_EQ(chat.records[1].kind, "long");
  EXPECT_LT(chat.records[1].scheduled, chat.records[0].token_times.back())
      << "however quick the model is, its chat is disturbed";
  EXPECT_FALSE(result->crossover.rates.prefill.empty());
  EXPECT_FALSE(progress.empty());
  EXPECT_TRUE(CompareJson(*result)["workloads"][0]["itl_p99_ratio"].is_number());
  EXPECT_THAT(ComparePage(*result), HasSubstr("Traffic: tiny"));
  EXPECT_THAT(CompareTable(*result), HasSubstr("splitting"));
}

}  // namespace
}  // namespace baton
