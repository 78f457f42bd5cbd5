#include "bench/load_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/cores.h"
#include "bench/load_arrivals.h"
#include "bench/load_metrics.h"
#include "tests/bench/fake_delays.h"
#include "tests/support/process.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr PromptVocabulary kVocabulary{.first_token = 17, .tokens = 40'000};

std::string Microseconds(Duration duration) {
  return absl::StrCat(std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}

// A fake server in a process of its own, and a generator of load for it.
class FakeServer {
 public:
  explicit FakeServer(const FakeDelayRange& range) : range_(range) {
    auto process = ChildProcess::Start(
        FAKE_SERVER, {Microseconds(range.first_low), Microseconds(range.first_high),
                      Microseconds(range.gap_low), Microseconds(range.gap_high)});
    EXPECT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
    const auto ready = process_->ReadLine(std::chrono::seconds(20));
    EXPECT_TRUE(ready.ok()) << ready.status();
    options_.server = ready->substr(ready->find("grpc=") + 5);
    options_.vocabulary = kVocabulary;
  }

  LoadGeneratorOptions& options() { return options_; }

  LoadRun Run(const Workload& workload) {
    const auto generator = LoadGenerator::Create(options_);
    EXPECT_TRUE(generator.ok()) << generator.status();
    auto run = (*generator)->Run(workload);
    EXPECT_TRUE(run.ok()) << run.status();
    return *std::move(run);
  }

  std::vector<Duration> KnownTimes(const LoadRequest& request) const {
    return FakeTokenTimes(MakePromptTokens(request.shape, 0, kVocabulary, false, request.seed),
                          request.shape.output_tokens, range_);
  }

 private:
  const FakeDelayRange range_;
  LoadGeneratorOptions options_;
  std::unique_ptr<ChildProcess> process_;
};

Workload MakeWorkload(const ArrivalOptions& arrivals, std::size_t count, int output_tokens) {
  Workload workload;
  for (const Duration arrival : MakeArrivals(arrivals, count)) {
    workload.requests.push_back(
        {.shape = {.arrival = arrival, .prompt_tokens = 32, .output_tokens = output_tokens},
         .seed = workload.requests.size()});
  }
  return workload;
}

// What a perfect generator would report, against what this one did.
void ExpectWithinTwoPercent(const char* what, const Distribution& seen, const Distribution& known) {
  EXPECT_EQ(seen.count, known.count) << what;
  EXPECT_NEAR(seen.mean, known.mean, 0.02 * known.mean) << what << " mean";
  EXPECT_NEAR(seen.p50, known.p50, 0.02 * known.p50) << what << " p50";
  EXPECT_NEAR(seen.p90, known.p90, 0.02 * known.p90) << what << " p90";
  EXPECT_NEAR(seen.p95, known.p95, 0.02 * known.p95) << what << " p95";
  EXPECT_NEAR(seen.p99, known.p99, 0.02 * known.p99) << what << " p99";
}

TEST(LoadGenerator, PercentilesAreThoseOfTheKnownDelays) {
  FakeServer server({.first_low = milliseconds(200),
                     .first_high = milliseconds(800),
                     .gap_low = milliseconds(40),
                     .gap_high = milliseconds(160)});
  const Workload workload = MakeWorkload({.requests_per_second = 100}, 500, 8);
  std::vector<double> first;
  std::vector<double> gaps;
  std::vector<double> end;
  for (const LoadRequest& request : workload.requests) {
    const std::vector<Duration> times = server.KnownTimes(request);
    const auto ms = [](Duration time) {
      return std::chrono::duration<double, std::milli>(time).count();
    };
    first.push_back(ms(times.front()));
    end.push_back(ms(times.back()));
    for (std::size_t i = 1; i < times.size(); ++i) {
      gaps.push_back(ms(times[i] - times[i - 1]));
    }
  }

  const LoadSummary summary = Summarize(server.Run(workload), {});

  EXPECT_EQ(summary.completed(), 500);
  ExpectWithinTwoPercent("first token", summary.first_token_ms, Describe(first));
  ExpectWithinTwoPercent("gaps", summary.inter_token_ms, Describe(gaps));
  ExpectWithinTwoPercent("end", summary.end_ms, Describe(end));
}

TEST(LoadGenerator, OneCoreHoldsTwoThousandRequestsASecond) {
  const FakeDelayRange quick{.first_low = milliseconds(20),
                             .first_high = milliseconds(20),
                             .gap_low = milliseconds(10),
                             .gap_high = milliseconds(10)};
  FakeServer server(quick);  // on any core
  const std::vector<int> cores = IdlestCores(1);
  ASSERT_TRUE(PinProcess(cores).ok());

  const Workload workload =
      MakeWorkload({.kind = ArrivalKind::kFixed, .requests_per_second = 2000}, 8000, 4);
  const LoadRun run = server.Run(workload);
  const LoadSummary summary = Summarize(run, {});

  ASSERT_TRUE(PinProcess(PermittedCores()).ok());
  EXPECT_EQ(summary.completed(), 8000) << summary.errors.begin()->first;
  EXPECT_EQ(summary.output_tokens, 32'000);
  // The schedule was kept: nothing piled up behind a generator that could not follow.
  EXPECT_LT(summary.send_lag_ms.p50, 5);
  EXPECT_LT(run.duration, std::chrono::milliseconds(4000 + 500));
  RecordProperty("cpu_share", absl::StrCat(run.cpu_seconds / summary.seconds));
  RecordProperty("send_lag_p99_ms", absl::StrCat(summary.send_lag_ms.p99));
}

TEST(LoadGenerator, NotesWhatTheServerSaysAndFailuresByMessage) {
  FakeServer server({.first_low = milliseconds(5), .first_high = milliseconds(5)});
  Workload workload = MakeWorkload({.requests_per_second = 1000}, 3, 2);
  workload.requests[1].path = v1::PATH_COLOCATED;
  workload.requests[2].kind = "long";

  const LoadRun run = server.Run(workload);
  const LoadSummary all = Summarize(run, {});

  EXPECT_EQ(run.records[0].path, v1::PATH_DISAGGREGATED);
  EXPECT_DOUBLE_EQ(run.records[0].server.prefill_ms, 1.5);
  EXPECT_EQ(run.records[1].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(run.records[1].token_times.size(), 1);
  EXPECT_EQ(all.failed, 1);
  EXPECT_EQ(all.errors.at("as asked"), 1);
  EXPECT_EQ(all.good_share(), 2.0 / 3);
  EXPECT_EQ(Summarize(run, {.kind = "long"}).requests, 1);
}

TEST(LoadGenerator, WhatIsDueBehindTooManyOpenRequestsFailsUnsent) {
  FakeServer server({.first_low = milliseconds(300), .first_high = milliseconds(300)});
  server.options().most_open = 2;

  const LoadRun run = server.Run(MakeWorkload({.requests_per_second = 1000}, 4, 1));

  EXPECT_TRUE(run.records[0].ok());
  EXPECT_TRUE(run.records[1].ok());
  EXPECT_THAT(std::string(run.records[2].status.message()), HasSubstr("2 requests were open"));
  EXPECT_EQ(run.records[3].status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(LoadGenerator, RequestsEndByTheirTimeout) {
  FakeServer server({.first_low = std::chrono::seconds(5), .first_high = std::chrono::seconds(5)});
  server.options().request_timeout = milliseconds(200);

  const LoadRun run = server.Run(MakeWorkload({.requests_per_second = 1000}, 2, 1));

  EXPECT_EQ(run.records[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(run.duration, std::chrono::seconds(4));
}

TEST(LoadGenerator, ReportsProgressAndNamesAServerThatIsNotThere) {
  FakeServer server({.first_low = milliseconds(1200), .first_high = milliseconds(1200)});
  std::vector<LoadProgress> seen;
  server.options().progress = [&seen](const LoadProgress& now) { seen.push_back(now); };

  server.Run(MakeWorkload({.requests_per_second = 1000}, 2, 1));

  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen[0].sent, 2);
  EXPECT_EQ(seen[0].ended, 0);
  EXPECT_EQ(seen[0].total, 2);

  server.options().server = "127.0.0.1:1";
  server.options().request_timeout = milliseconds(200);
  const auto run = (*LoadGenerator::Create(server.options()))->Run({});
  EXPECT_EQ(run.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(run.status().message()), HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace baton
