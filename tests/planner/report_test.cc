#include "planner/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace baton {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(FormatNumber, ShowsDigitsThatMatter) {
  EXPECT_EQ(FormatNumber({5102.4, 4}), "5102.4");
  EXPECT_EQ(FormatNumber({2885.29777777, 4}), "2885.2978");
  EXPECT_EQ(FormatNumber({1777778, 0}), "1777778");
  EXPECT_EQ(FormatNumber({100, 0}), "100");
  EXPECT_EQ(FormatNumber({-0.00001, 2}), "0");
  EXPECT_EQ(FormatNumber({std::numeric_limits<double>::infinity(), 2}), "-");
  EXPECT_EQ(FormatNumber({std::numeric_limits<double>::quiet_NaN(), 2}), "-");
}

Report Example() {
  return {.command = "disagg",
          .mode = "paper",
          .claim = "contradicts \"nothing\"",
          .tables = {{.key = "paths",
                      .heading = "Paths",
                      .columns = {{"path", "path"}, {"total_ms", "total, ms"}, {"ok", "ok"}},
                      .rows = {{"colocated", Num(1.23456789, 2), true},
                               {"split", Num(std::numeric_limits<double>::infinity()), Cell()}}}},
          .notes = {"one", "two"}};
}

TEST(FormatText, AlignsWordsLeftAndNumbersRight) {
  EXPECT_EQ(FormatText(Example()),
            "Paths\n"
            "  path       total, ms   ok\n"
            "  colocated       1.23  yes\n"
            "  split              -    -\n"
            "\n"
            "course: contradicts \"nothing\"\n"
            "note: one\n"
            "note: two\n");
}

TEST(FormatJson, KeepsAllDigitsAndHasNoInfinity) {
  const auto json = nlohmann::json::parse(FormatJson(Example()));

  EXPECT_EQ(json["command"], "disagg");
  EXPECT_EQ(json["notes"].size(), 2u);
  EXPECT_EQ(json["paths"][0]["total_ms"], 1.23456789);
  EXPECT_EQ(json["paths"][0]["ok"], true);
  EXPECT_TRUE(json["paths"][1]["total_ms"].is_null());
  EXPECT_TRUE(json["paths"][1]["ok"].is_null());
}

TEST(FormatSvg, LabelsAxesAndEscapesText) {
  const std::string svg = FormatSvg({.title = "a < b & \"c\"",
                                     .x_label = "prompt, tokens",
                                     .y_label = "time, ms",
                                     .lines = {{"one", {{1, 2}, {2, 3}}}},
                                     .marked_x = 1.5,
                                     .mark = "512"});

  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_THAT(svg, HasSubstr("prompt, tokens"));
  EXPECT_THAT(svg, HasSubstr("time, ms"));
  EXPECT_THAT(svg, HasSubstr(">512<"));
  EXPECT_THAT(svg, HasSubstr(">one<"));
}

TEST(FormatSvg, DrawsDotsAndEvents) {
  const std::string svg =
      FormatSvg({.lines = {{.name = "gaps", .points = {{1, 2}, {2, 3}}, .dots = true}},
                 .events_x = {1, 2, 5},
                 .event = "a prompt"});

  EXPECT_THAT(svg, HasSubstr(">gaps<"));
  EXPECT_THAT(svg, HasSubstr(">a prompt<"));
  EXPECT_THAT(svg, Not(HasSubstr("<path")));
}

TEST(FormatBars, StacksPartsAndNamesThem) {
  const std::string svg = FormatBars({.title = "t",
                                      .x_label = "ms",
                                      .parts = {"queue", "a & b"},
                                      .bars = {{.name = "one", .parts = {10, 30}}}});

  EXPECT_THAT(svg, HasSubstr(">queue<"));
  EXPECT_THAT(svg, HasSubstr(">a &amp; b<"));
  EXPECT_THAT(svg, HasSubstr(">one<"));
  EXPECT_THAT(FormatBars({}), HasSubstr("</svg>"));
}

TEST(FormatSvg, LeavesOutWhatAnAxisCannotShow) {
  const double infinite = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const bool log : {false, true}) {
    const std::string svg =
        FormatSvg({.log_x = log,
                   .log_y = log,
                   .lines = {{"odd", {{0, 1}, {1, infinite}, {2, nan}, {-3, 4}, {5, 0}}}}});
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
  }
  for (const std::vector<PlotPoint>& points :
       {std::vector<PlotPoint>{}, {{3, 3}}, {{1, 0}, {2, 0}}, {{1, 1e300}, {2, 1e-300}}}) {
    EXPECT_THAT(FormatSvg({.lines = {{"few", points}}}), HasSubstr("</svg>"));
  }
}

}  // namespace
}  // namespace baton
