#include "worker/trace_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

std::string ReadFile(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

// A step of one operation after 10 us of scheduling; `calls` must outlive the result's use.
StepStatistics MakeStep(int number, std::vector<OperationCall>& calls) {
  const TimePoint start(std::chrono::hours(1000) + number * microseconds(500) + nanoseconds(123));
  calls = {{.operation = Operation::kMatMul,
            .rows = 4,
            .weight_rows = 48,
            .weight_columns = 32,
            .start = start + microseconds(10),
            .duration = nanoseconds(150'001)},
           {.operation = Operation::kSynchronize,
            .start = start + microseconds(200),
            .duration = microseconds(7)}};
  StepStatistics step{.start = start,
                      .duration = microseconds(400),
                      .scheduling = microseconds(10),
                      .prefill_rows = 3,
                      .decode_rows = 1,
                      .preempted = 5,
                      .cached_tokens = 6,
                      .prefilled_tokens = 3,
                      .sampled_tokens = 2,
                      .running = 7,
                      .waiting = 8,
                      .free_blocks = 9,
                      .calls = calls};
  return step;
}

void GiveSteps(TraceFile& trace, int count) {
  std::vector<OperationCall> calls;
  for (int i = 0; i < count; ++i) {
    trace.OnStep(MakeStep(i, calls));
  }
}

class TraceFileTest : public testing::Test {
 protected:
  std::unique_ptr<TraceFile> Create(TraceFileOptions options = {}) {
    options.process = "baton-test";
    auto trace = TraceFile::Create(path_, std::move(options));
    EXPECT_TRUE(trace.ok()) << trace.status();
    return *std::move(trace);
  }

  TemporaryFolder folder_;
  const std::string path_ = (folder_.path() / "trace.json").string();
};

Span MakeSpan() {
  Span span{.context = TraceContext::NewTrace(),
            .name = "decode.request",
            .start = TimePoint(std::chrono::hours(1000)),
            .end = TimePoint(std::chrono::hours(1000) + microseconds(1500))};
  span.attributes.emplace_back("count", std::int64_t{7});
  return span;
}

TEST_F(TraceFileTest, SpansStandBesideTheSteps) {
  const Span span = MakeSpan();
  {
    const auto trace = Create();
    EXPECT_TRUE(trace->keeps_operations());
    GiveSteps(*trace, 1);
    trace->Record(span);
  }
  std::map<std::string, json> events;
  for (const json& event : json::parse(ReadFile(path_))) {
    events[event.at("ph").get<std::string>()] = event;
  }
  const json& begin = events.at("b");
  const json& end = events.at("e");
  EXPECT_EQ(begin.at("name"), "decode.request");
  EXPECT_EQ(begin.at("id"), end.at("id"));
  EXPECT_NEAR(end.at("ts").get<double>() - begin.at("ts").get<double>(), 1500, 1e-3);
  EXPECT_EQ(begin.at("args").at("kind"), "span");
  EXPECT_EQ(begin.at("args").at("attributes").at("count"), 7);
  EXPECT_EQ("0x" + begin.at("args").at("span_id").get<std::string>(), begin.at("id"));
  EXPECT_TRUE(events.contains("X")) << "the step";
}

TEST_F(TraceFileTest, LinesOfJsonHoldStepsAndSpans) {
  const Span span = MakeSpan();
  {
    const auto trace = Create({.json_lines = true});
    EXPECT_FALSE(trace->keeps_operations());
    GiveSteps(*trace, 2);
    trace->Record(span);
  }
  std::istringstream lines(ReadFile(path_));
  std::map<std::string, int> kinds;
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line);
    ++kinds[event.at("kind").get<std::string>()];
    EXPECT_EQ(event.at("service"), "baton-test");
    if (event.at("kind") == "step") {
      EXPECT_EQ(event.at("duration_ns"), 400'000);
      EXPECT_EQ(event.at("prefill_rows"), 3);
      EXPECT_EQ(event.at("free_blocks"), 9);
    } else {
      EXPECT_EQ(event.at("end_time_unix_nano").get<std::int64_t>() -
                    event.at("start_time_unix_nano").get<std::int64_t>(),
                1'500'000);
    }
  }
  EXPECT_EQ(kinds, (std::map<std::string, int>{{"step", 2}, {"span", 1}}));
}

TEST_F(TraceFileTest, LinesOfJsonEndWholeWhenTheFileIsFull) {
  {
    const auto trace = Create({.most_bytes = 3000, .json_lines = true});
    for (int i = 0; i < 100; ++i) {
      trace->Record(MakeSpan());
    }
  }
  const std::string text = ReadFile(path_);
  EXPECT_LE(text.size(), 3000u);
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(text.back(), '\n');
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_EQ(json::parse(line).at("kind"), "span");  // throws on half a line
  }
}

TEST_F(TraceFileTest, EveryFieldOfEveryEvent) {
  auto trace = Create();
  GiveSteps(*trace, 1);
  trace.reset();

  const int pid = getpid();
  const double start = 1000 * 3600e6 + 0.123;
  const json expected = json::array({{{"ph", "M"},
                                      {"pid", pid},
                                      {"tid", 1},
                                      {"name", "process_name"},
                                      {"args", {{"name", "baton-test"}}}},
                                     {{"ph", "M"},
                                      {"pid", pid},
                                      {"tid", 1},
                                      {"name", "thread_name"},
                                      {"args", {{"name", "engine"}}}},
                                     {{"ph", "X"},
                                      {"pid", pid},
                                      {"tid", 1},
                                      {"ts", start},
                                      {"dur", 400.0},
                                      {"cat", "step"},
                                      {"name", "prefill and decode"},
                                      {"args",
                                       {{"prefill_rows", 3},
                                        {"decode_rows", 1},
                                        {"prefilled_tokens", 3},
                                        {"sampled_tokens", 2},
                                        {"cached_tokens", 6},
                                        {"preempted", 5},
                                        {"running", 7},
                                        {"waiting", 8},
                                        {"free_blocks", 9}}}},
                                     {{"ph", "X"},
                                      {"pid", pid},
                                      {"tid", 1},
                                      {"ts", start},
                                      {"dur", 10.0},
                                      {"cat", "step"},
                                      {"name", "schedule"}},
                                     {{"ph", "X"},
                                      {"pid", pid},
                                      {"tid", 1},
                                      {"ts", start + 10},
                                      {"dur", 150.001},
                                      {"cat", "operation"},
                                      {"name", "mat_mul"},
                                      {"args", {{"rows", 4}, {"weight", "48x32"}}}},
                                     {{"ph", "X"},
                                      {"pid", pid},
                                      {"tid", 1},
                                      {"ts", start + 200},
                                      {"dur", 7.0},
                                      {"cat", "operation"},
                                      {"name", "synchronize"}},
                                     {{"ph", "C"},
                                      {"pid", pid},
                                      {"tid", 1},
                                      {"ts", start + 400},
                                      {"name", "free blocks"},
                                      {"args", {{"blocks", 9}}}},
                                     {{"ph", "C"},
                                      {"pid", pid},
                                      {"tid", 1},
                                      {"ts", start + 400},
                                      {"name", "sequences"},
                                      {"args", {{"running", 7}, {"waiting", 8}}}}});
  EXPECT_EQ(json::parse(ReadFile(path_)), expected);
}

TEST_F(TraceFileTest, WithoutAStepItIsStillAnArray) {
  Create().reset();
  EXPECT_EQ(json::parse(ReadFile(path_)).size(), 2u);
}

TEST_F(TraceFileTest, AStepIsNamedAfterItsRows) {
  std::vector<OperationCall> calls;
  auto trace = Create();
  for (const auto& [prefill, decode] : {std::pair(0, 0), {1, 0}, {0, 1}, {1, 1}}) {
    StepStatistics step = MakeStep(0, calls);
    step.prefill_rows = prefill;
    step.decode_rows = decode;
    trace->OnStep(step);
  }
  trace.reset();

  std::vector<std::string> names;
  for (const json& event : json::parse(ReadFile(path_))) {
    if (event.value("cat", "") == "step" && event["name"] != "schedule") {
      names.push_back(event["name"]);
    }
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"no rows", "prefill", "decode", "prefill and decode"}));
}

// A killed process leaves what has been written so far: whole events, and no closing bracket.
TEST_F(TraceFileTest, IsLoadableWhileItIsWritten) {
  auto trace = Create();
  GiveSteps(*trace, 3);
  const auto events = [this] {
    const json parsed = json::parse(ReadFile(path_) + "]", nullptr, /*allow_exceptions=*/false);
    return parsed.is_array() ? parsed.size() : 0;
  };

  EXPECT_TRUE(WaitUntil([&events] { return events() == 2 + 3 * 6; })) << ReadFile(path_);
}

TEST_F(TraceFileTest, EndsWithWholeEventsWhenItIsFull) {
  constexpr std::size_t kMostBytes = 20'000;
  auto trace = Create({.most_bytes = kMostBytes, .most_waiting_steps = 100'000});
  GiveSteps(*trace, 1000);
  trace.reset();

  const std::string content = ReadFile(path_);
  EXPECT_LE(content.size(), kMostBytes);
  EXPECT_GT(content.size(), kMostBytes - 2'000);
  EXPECT_EQ((json::parse(content).size() - 2) % 6, 0u);
}

// The queue has room for one step, so the writer cannot keep up.
TEST_F(TraceFileTest, DropsWhatTheWriterCannotTakeAndSaysSo) {
  constexpr int kSteps = 20'000;
  auto trace = Create({.most_waiting_steps = 1});
  GiveSteps(*trace, kSteps);
  ASSERT_TRUE(WaitUntil([&] {  // one that is taken says how many were dropped before it
    std::vector<OperationCall> calls;
    const std::uint64_t dropped = trace->dropped_steps();
    trace->OnStep(MakeStep(kSteps, calls));
    return trace->dropped_steps() == dropped;
  }));
  const std::uint64_t dropped = trace->dropped_steps();
  ASSERT_GT(dropped, 0u);
  trace.reset();

  std::uint64_t told = 0;
  for (const json& event : json::parse(ReadFile(path_))) {
    if (event["name"] == "steps dropped") {
      EXPECT_EQ(event["ph"], "i");
      told += event["args"]["steps"].get<std::uint64_t>();
    }
  }
  EXPECT_EQ(told, dropped);
}

// Writing fails here as it does on a full disk: after a part of what was asked for.
TEST_F(TraceFileTest, AFailingDiskEndsTheTraceAfterAWholeEvent) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  auto trace = Create();
  const rlimit limit{.rlim_cur = 10'000, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  GiveSteps(*trace, 200);
  trace.reset();
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, old_handler);

  const std::string content = ReadFile(path_);
  EXPECT_LE(content.size(), 10'000u);
  EXPECT_GT(content.size(), 9'000u);
  EXPECT_TRUE(json::parse(content).is_array());
}

TEST_F(TraceFileTest, AFileThatIsThereIsReplaced) {
  std::ofstream(path_) << std::string(100'000, 'x');
  Create().reset();
  EXPECT_EQ(json::parse(ReadFile(path_)).size(), 2u);
}

TEST_F(TraceFileTest, WhatCannotHoldATraceIsRefusedByName) {
  const auto refused = [](const std::string& path) {
    const absl::Status status = TraceFile::Create(path, {.process = "baton-test"}).status();
    EXPECT_NE(std::string(status.message()).find(path), std::string::npos) << status;
    return status.code();
  };
  EXPECT_EQ(refused((folder_.path() / "no" / "trace.json").string()), absl::StatusCode::kNotFound);
  EXPECT_NE(refused(folder_.path().string()), absl::StatusCode::kOk);
  EXPECT_EQ(refused("/dev/null"), absl::StatusCode::kInvalidArgument);
  const auto other = Create();
  EXPECT_EQ(refused(path_), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace baton
