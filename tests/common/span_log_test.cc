#include "common/span_log.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using nlohmann::json;

class KeptSpans final : public SpanSink {
 public:
  void Record(Span span) override { spans.push_back(std::move(span)); }
  std::vector<Span> spans;
};

std::vector<json> ReadLines(const std::string& path) {
  std::vector<json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(json::parse(line));
  }
  return lines;
}

TEST(OpenSpan, IsAChildOfWhoeverAsked) {
  KeptSpans kept;
  OpenSpan outer(&kept, "outer", "");
  OpenSpan inner(&kept, "inner", outer.traceparent());
  inner.End(absl::OkStatus());
  outer.End(absl::OkStatus());
  outer.End(absl::OkStatus());

  ASSERT_EQ(kept.spans.size(), 2u) << "a span ends once";
  EXPECT_EQ(kept.spans[0].context.trace_id, kept.spans[1].context.trace_id);
  EXPECT_EQ(kept.spans[0].parent, kept.spans[1].context.span_id);
  EXPECT_EQ(kept.spans[1].parent, std::nullopt);
  EXPECT_GE(kept.spans[0].start, kept.spans[1].start);
  EXPECT_LE(kept.spans[0].end, kept.spans[1].end);
}

TEST(OpenSpan, WithoutASinkTheTraceIsPassedOn) {
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
  OpenSpan span(nullptr, "nothing", trace);
  span.Add("a", std::int64_t{1});
  span.End(absl::OkStatus());
  EXPECT_EQ(span.traceparent(), trace);
}

TEST(SpanFile, WritesALineOfJsonForEverySpan) {
  const std::string path = testing::TempDir() + "/spans.jsonl";
  {
    const auto file = SpanFile::Create(path, {.service = "baton-test"});
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(SpanFile::Create(path, {}).status().code(), absl::StatusCode::kFailedPrecondition);
    OpenSpan outer(file->get(), "outer", "");
    OpenSpan inner(file->get(), "inner", outer.traceparent());
    inner.Add("text", "a \"quoted\"\nline \xff");
    inner.Add("count", std::int64_t{1} << 53);
    inner.Add("seconds", 0.25);
    inner.End(absl::NotFoundError("gone"));
    outer.End(absl::OkStatus());
  }
  const std::vector<json> lines = ReadLines(path);
  ASSERT_EQ(lines.size(), 2u);
  const json& inner = lines[0];
  EXPECT_EQ(inner["kind"], "span");
  EXPECT_EQ(inner["service"], "baton-test");
  EXPECT_EQ(inner["name"], "inner");
  EXPECT_EQ(inner["trace_id"], lines[1]["trace_id"]);
  EXPECT_EQ(inner["parent_span_id"], lines[1]["span_id"]);
  EXPECT_FALSE(lines[1].contains("parent_span_id"));
  EXPECT_EQ(inner["status"], "NOT_FOUND");
  EXPECT_EQ(inner["message"], "gone");
  EXPECT_EQ(inner["attributes"]["text"], "a \"quoted\"\nline \xEF\xBF\xBD");
  EXPECT_EQ(inner["attributes"]["count"], std::int64_t{1} << 53);
  EXPECT_EQ(inner["attributes"]["seconds"], 0.25);
  EXPECT_LE(inner["start_time_unix_nano"], inner["end_time_unix_nano"]);
  const std::int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
  const std::int64_t start = inner["start_time_unix_nano"];
  EXPECT_LT(std::abs(now - start), std::int64_t{60'000'000'000});
}

TEST(SpanFile, EndsWholeWhenItIsFull) {
  const std::string path = testing::TempDir() + "/full_spans.jsonl";
  {
    const auto file = SpanFile::Create(path, {.service = "s", .most_bytes = 2000});
    ASSERT_TRUE(file.ok()) << file.status();
    for (int i = 0; i < 100; ++i) {
      OpenSpan(file->get(), "one", "").End(absl::OkStatus());
    }
  }
  std::ifstream file(path, std::ios::ate);
  EXPECT_LE(file.tellg(), 2000);
  for (const json& line : ReadLines(path)) {  // throws on half a line
    EXPECT_EQ(line["name"], "one");
  }
}

TEST(SpanFile, RefusesWhatIsNoFile) {
  EXPECT_EQ(SpanFile::Create("/dev/null", {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(SpanFile::Create("/no/such/folder/spans", {}).ok());
}

}  // namespace
}  // namespace baton
