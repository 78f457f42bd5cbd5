#include "bench/compare_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bench/compare_page.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr ServiceLimits kLimits{.first_token_ms = 100, .inter_token_ms = 50};

// `good` requests of ten keep the limits. All have gaps of `gap_ms`.
LoadRun MakeRun(int good, int gap_ms, int first_ms = 40) {
  LoadRun run;
  for (int i = 0; i < 10; ++i) {
    RequestRecord record{.kind = "chat", .scheduled = milliseconds(100 * i)};
    const milliseconds first(i < good ? first_ms : 1000);
    for (int token = 0; token < 5; ++token) {
      record.token_times.push_back(record.scheduled + first + milliseconds(token * gap_ms));
    }
    record.ended = record.token_times.back();
    run.records.push_back(std::move(record));
  }
  return run;
}

ComparedWorkload MakeTraffic(std::string name) {
  return {.name = std::move(name),
          .description = "ten requests",
          .limits = kLimits,
          .rates = {1, 2, 4},
          .reference_rate = 1};
}

SetUpRuns MakeSetUp(SetUp set_up, const std::vector<int>& good_at_rates, int gap_ms) {
  SetUpRuns runs{.set_up = set_up};
  double rate = 1;
  for (const int good : good_at_rates) {
    runs.points.push_back({.rate = rate, .runs = {MakeRun(good, gap_ms)}});
    rate *= 2;
  }
  return runs;
}

WorkloadRuns MakeWorkload(const std::string& name, int colocated_gap, int split_gap) {
  const bool split_is_better = split_gap < colocated_gap;
  const std::vector<int> better{10, 10, 8};
  const std::vector<int> worse{10, 8, 2};
  return {.workload = MakeTraffic(name),
          .set_ups = {MakeSetUp(SetUp::kColocated, split_is_better ? worse : better, colocated_gap),
                      MakeSetUp(SetUp::kDisaggregated, split_is_better ? better : worse, split_gap),
                      MakeSetUp(SetUp::kConditional, worse, split_gap)}};
}

CompareResult MakeResult() {
  CompareResult result{.machine = "a machine", .cores = "two cores"};
  result.workloads.push_back(MakeWorkload("mixed", 40, 10));
  result.workloads.push_back(MakeWorkload("code", 10, 20));
  result.chat = {.undisturbed = {MakeRun(10, 10)},
                 .disaggregated = {MakeRun(10, 12)},
                 .colocated = {MakeRun(10, 48)}};
  result.crossover.rates = {.kv_bytes_per_token = 1,
                            .prefill = {{.prompt_tokens = 16, .tokens_per_second = 100}},
                            .decode = {{.batch = 1, .depth_tokens = 1, .step_seconds = 0.01}}};
  for (const int prompt : {128, 512, 2048}) {
    result.crossover.cells.push_back(
        {.prompt_tokens = prompt,
         .output_tokens = 1,
         .running = 2,
         .colocated_seconds = prompt * 0.002,
         .disaggregated_seconds = 0.2 + prompt * 0.001,
         .predicted_colocated_seconds = prompt * 0.002 * 1.1,
         .predicted_disaggregated_seconds = (0.2 + prompt * 0.001) * 0.9});
  }
  return result;
}

TEST(Goodput, LiesBetweenTheLastGoodAndTheFirstBadRate) {
  const ComparedWorkload traffic = MakeTraffic("x");

  const SideFigures inside = FiguresOf(MakeSetUp(SetUp::kColocated, {10, 10, 8}, 10), traffic);
  EXPECT_DOUBLE_EQ(inside.goodput.requests_per_second, 3);
  EXPECT_FALSE(inside.goodput.at_highest || inside.goodput.below_lowest);

  const SideFigures above = FiguresOf(MakeSetUp(SetUp::kColocated, {10, 10, 9}, 10), traffic);
  EXPECT_DOUBLE_EQ(above.goodput.requests_per_second, 4);
  EXPECT_TRUE(above.goodput.at_highest);

  const SideFigures below = FiguresOf(MakeSetUp(SetUp::kColocated, {5, 10, 10}, 10), traffic);
  EXPECT_DOUBLE_EQ(below.goodput.requests_per_second, 1) << "less than the lowest rate";
  EXPECT_TRUE(below.goodput.below_lowest);
}

TEST(SideFigures, AreMediansAndRangesOverRepeatsAtTheReferenceRate) {
  SetUpRuns set_up = MakeSetUp(SetUp::kColocated, {10}, 10);
  set_up.points[0].runs.push_back(MakeRun(10, 30));
  set_up.points[0].runs.push_back(MakeRun(10, 14));
  set_up.points.push_back({.rate = 2, .runs = {MakeRun(10, 45)}});

  const SideFigures side = FiguresOf(set_up, MakeTraffic("x"));

  EXPECT_DOUBLE_EQ(side.itl_p99_ms.median, 14);
  EXPECT_DOUBLE_EQ(side.itl_p99_ms.least, 10);
  EXPECT_DOUBLE_EQ(side.itl_p99_ms.most, 30);
  EXPECT_DOUBLE_EQ(side.ttft_p50_ms.median, 40);
  EXPECT_GT(side.peak_output_tokens_per_s, 0);
}

TEST(CompareJson, HasTheMembersOfItsContract) {
  const nlohmann::ordered_json json = CompareJson(MakeResult());

  EXPECT_EQ(json["workloads"].size(), 2);
  const auto& mixed = json["workloads"][0];
  EXPECT_EQ(mixed["name"], "mixed");
  for (const char* side : {"colocated", "disaggregated", "conditional"}) {
    for (const char* member : {"ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms",
                               "output_tokens_per_s", "goodput_rps"}) {
      EXPECT_TRUE(mixed[side][member].is_number()) << side << " " << member;
    }
  }
  EXPECT_DOUBLE_EQ(mixed["itl_p99_ratio"].get<double>(), 4);
  EXPECT_DOUBLE_EQ(mixed["goodput_ratio"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(json["workloads"][1]["itl_p99_ratio"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(json["running_chat"]["disaggregated_over_undisturbed"].get<double>(), 1.2);
  EXPECT_NEAR(json["crossover"]["prediction_error_median"].get<double>(), 0.1, 1e-9);
}

TEST(Verdict, NamesGainsAndLossesInOneSentence) {
  const std::string verdict = Verdict(MakeResult());

  EXPECT_THAT(verdict, HasSubstr("pays for mixed traffic (p99 between tokens 4.0x shorter, "
                                 "goodput 2.0x higher"));
  EXPECT_THAT(verdict, HasSubstr("does not for code traffic (p99 between tokens 2.0x longer, "
                                 "goodput 2.0x lower"));
  EXPECT_EQ(verdict.find(". "), std::string::npos);
}

// A rate that nobody measured is in no verdict.
TEST(Verdict, SaysWhatIsKnownOfGoodputBeyondTheRates) {
  const std::vector<int> below = {5, 10, 10};
  const std::vector<int> inside = {10, 10, 8};
  const std::vector<int> above = {10, 10, 10};
  struct Row {
    std::vector<int> colocated;
    std::vector<int> split;
    const char* known;
    const char* says;
    const char* verdict;
  };
  const char* const pays = "splitting pays for x";
  const char* const costs = "splitting does not pay for x";
  const char* const open = "whether splitting pays these rates do not tell for x";
  const Row rows[] = {
      {inside, inside, "exactly", "goodput the same", costs},
      {below, inside, "at least", "goodput at least 3.0x higher", pays},
      {inside, above, "at least", "goodput at least 1.3x higher", pays},
      {below, above, "at least", "goodput at least 4.0x higher", pays},
      {inside, below, "at most", "goodput at least 3.0x lower", costs},
      {above, inside, "at most", "goodput at least 1.3x lower", costs},
      {below, below, "nothing", "goodput not told apart by these rates", open},
      {above, above, "nothing", "goodput not told apart by these rates", open},
  };
  for (const Row& row : rows) {
    CompareResult result;
    result.workloads.push_back({.workload = MakeTraffic("x"),
                                .set_ups = {MakeSetUp(SetUp::kColocated, row.colocated, 10),
                                            MakeSetUp(SetUp::kDisaggregated, row.split, 10),
                                            MakeSetUp(SetUp::kConditional, row.split, 10)}});
    EXPECT_EQ(CompareJson(result)["workloads"][0]["goodput_ratio_known"], row.known) << row.says;
    EXPECT_THAT(Verdict(result), HasSubstr(row.says));
    EXPECT_THAT(Verdict(result), HasSubstr(row.verdict));
  }
}

TEST(BreakEven, IsTheLeastLengthFromWhichAllAreQuicker) {
  CompareResult result = MakeResult();

  const std::vector<BreakEven> found = BreakEvensOf(result.crossover);

  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].output_tokens, 1);
  EXPECT_EQ(found[0].running, 2);
  EXPECT_EQ(found[0].measured, 512);
  EXPECT_EQ(found[0].predicted, 512);
  result.crossover.cells.back().disaggregated_seconds = 100;
  EXPECT_EQ(BreakEvensOf(result.crossover)[0].measured, std::nullopt);
}

// T57: which side the traffic was on.
TEST(SidesOfCrossover, SayHowManyPromptsAreLongEnough) {
  CompareResult result = MakeResult();
  for (WorkloadRuns& runs : result.workloads) {
    for (SetUpRuns& set_up : runs.set_ups) {
      for (LoadRun& run : set_up.points[0].runs) {
        for (int i = 0; i < 3; ++i) {
          run.records[static_cast<std::size_t>(i)].prompt_tokens = 512;
        }
      }
    }
  }

  EXPECT_THAT(
      SidesOfCrossover(result),
      testing::ElementsAre(
          "Beside 2 running streams, to the end of 1 new tokens, splitting is quicker for "
          "the request from 512 prompt tokens on. As long: 30% of the mixed prompts, 30% of "
          "the code prompts."));
  EXPECT_THAT(CompareTable(result), HasSubstr("30% of the mixed prompts"));
  EXPECT_THAT(ComparePage(result), HasSubstr("30% of the mixed prompts"));

  result.crossover.cells.back().disaggregated_seconds = 100;
  EXPECT_THAT(
      SidesOfCrossover(result),
      testing::ElementsAre(HasSubstr("from no prompt length on, of those up to 2048 tokens")));
}

TEST(ComparePage, ShowsEverythingAndLoadsNothing) {
  const std::string page = ComparePage(MakeResult());

  for (const char* text :
       {"Traffic: mixed", "Traffic: code", "A running chat", "Crossover by prompt", "pays for",
        "Time to first token against rate", "Goodput against rate", "When streams stand still",
        "Where the time to the first and second token goes", "a machine"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  EXPECT_THAT(page, Not(HasSubstr("href=")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace baton
