#include "common/trace_context.h"

#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kSpan = "00f067aa0ba902b7";

TEST(TraceContext, ReadsAndWritesTheFormOfW3C) {
  const std::string text = "00-" + kTrace + "-" + kSpan + "-01";
  const auto context = TraceContext::Parse(text);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id[0], 0x4b);
  EXPECT_EQ(context->trace_id[15], 0x36);
  EXPECT_EQ(context->span_id[1], 0xf0);
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(context->ToString(), text);

  const auto unsampled = TraceContext::Parse("00-" + kTrace + "-" + kSpan + "-00");
  ASSERT_TRUE(unsampled.has_value());
  EXPECT_FALSE(unsampled->sampled);
  EXPECT_EQ(unsampled->ToString(), "00-" + kTrace + "-" + kSpan + "-00");
}

TEST(TraceContext, TakesWhatIsKnownOfLaterVersions) {
  const std::string core = kTrace + "-" + kSpan + "-01";
  EXPECT_TRUE(TraceContext::Parse("01-" + core).has_value());
  const auto longer = TraceContext::Parse("cc-" + core + "-what-ever");
  ASSERT_TRUE(longer.has_value());
  EXPECT_EQ(longer->ToString(), "00-" + core) << "passed on as the version this build knows";
  EXPECT_TRUE(TraceContext::Parse("00-" + kTrace + "-" + kSpan + "-ff").has_value())
      << "flags that are not known are no error";
  EXPECT_FALSE(TraceContext::Parse("cc-" + core + "x").has_value());
}

TEST(TraceContext, RefusesEverythingElse) {
  const std::string good = "00-" + kTrace + "-" + kSpan + "-01";
  const std::string bad[] = {
      "",
      "00",
      good.substr(0, 54),
      good + "-",
      good + "0",
      "ff-" + kTrace + "-" + kSpan + "-01",
      "0x-" + kTrace + "-" + kSpan + "-01",
      "00_" + kTrace + "-" + kSpan + "-01",
      "00-" + kTrace + "_" + kSpan + "-01",
      "00-" + kTrace + "-" + kSpan + "_01",
      "00-" + std::string(32, '0') + "-" + kSpan + "-01",
      "00-" + kTrace + "-" + std::string(16, '0') + "-01",
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kSpan + "-01",
      "00-4bf92f3577b34da6a3ce929d0e0e473g-" + kSpan + "-01",
      "00-" + kTrace + "-" + kSpan + "-0 ",
      " " + good.substr(1),
      std::string(55, '\0'),
  };
  for (const std::string& text : bad) {
    EXPECT_FALSE(TraceContext::Parse(text).has_value()) << text;
  }
}

TEST(TraceContext, AChildKeepsTheTraceAndIsAnotherSpan) {
  const TraceContext root = TraceContext::NewTrace();
  const TraceContext child = root.NewChild();
  EXPECT_EQ(child.trace_id, root.trace_id);
  EXPECT_NE(child.span_id, root.span_id);
  EXPECT_TRUE(TraceContext::Parse(child.ToString()) == child);
  EXPECT_NE(TraceContext::NewTrace().trace_id, root.trace_id);
}

}  // namespace
}  // namespace baton
