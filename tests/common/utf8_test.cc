#include "common/utf8.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

using std::string_literals::operator""s;

TEST(Utf8, AcceptsEveryScalarValueBoundary) {
  for (const std::string& text : {""s, "\0"s, "\x7f"s, "\xc2\x80"s, "\xdf\xbf"s, "\xe0\xa0\x80"s,
                                  "\xed\x9f\xbf"s, "\xee\x80\x80"s, "\xef\xbf\xbf"s,
                                  "\xef\xbb\xbf"s, "\xf0\x90\x80\x80"s, "\xf4\x8f\xbf\xbf"s}) {
    EXPECT_EQ(FindInvalidUtf8(text), std::nullopt) << text.size();
  }
}

TEST(Utf8, NamesTheFirstBadByte) {
  const std::vector<std::pair<std::string, std::size_t>> cases = {
      {"a\x80"s, 1},          // continuation alone
      {"ab\xc0\xaf"s, 2},     // overlong
      {"\xc1\xbf"s, 0},       // overlong
      {"\xe0\x9f\xbf"s, 0},   // overlong
      {"x\xed\xa0\x80"s, 1},  // surrogate
      {"\xf4\x90\x80\x80"s, 0},
      {"\xf5\x80\x80\x80"s, 0},
      {"ok\xe2\x82"s, 2},  // truncated
      {"\xff"s, 0},
  };
  for (const auto& [text, offset] : cases) {
    EXPECT_EQ(FindInvalidUtf8(text), offset);
  }
}

TEST(Utf8, CompletePrefixHoldsBackOnlyWhatMayStillBecomeACharacter) {
  EXPECT_EQ(CompleteUtf8Prefix("abc"), 3u);
  EXPECT_EQ(CompleteUtf8Prefix("ab\xe2\x82"), 2u);
  EXPECT_EQ(CompleteUtf8Prefix("ab\xe2\x82\xac"), 5u);
  EXPECT_EQ(CompleteUtf8Prefix("\xf0\x9f\x98"), 0u);
  EXPECT_EQ(CompleteUtf8Prefix("a\x80\x80"), 3u);  // can never become one
  EXPECT_EQ(CompleteUtf8Prefix("a\xe0\x80"), 3u);  // overlong: never
}

TEST(Utf8, ReplacesMalformedPartsAndNothingElse) {
  EXPECT_EQ(ReplaceInvalidUtf8("a\xff"
                               "b"),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(ReplaceInvalidUtf8("\xe2\x82"), "\xef\xbf\xbd");
  EXPECT_EQ(ReplaceInvalidUtf8("h\xc3\xa9"), "h\xc3\xa9");
}

}  // namespace
}  // namespace baton
