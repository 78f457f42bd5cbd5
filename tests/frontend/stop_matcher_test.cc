#include "frontend/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace baton {
namespace {

struct Match {
  std::string text;
  std::size_t end = 0;  // bytes of the input up to and with the match; 0: none
  friend bool operator==(const Match&, const Match&) = default;
};

Match FirstMatch(const std::vector<std::string>& stops, std::string_view input) {
  StopMatcher matcher(stops);
  for (std::size_t i = 0; i < input.size(); ++i) {
    const std::string_view found = matcher.Push(input[i]);
    if (!found.empty()) {
      return {.text = std::string(found), .end = i + 1};
    }
  }
  return {};
}

// The definition, word for word: at the first byte where any string ends, the longest that ends
// there.
Match NaiveFirstMatch(const std::vector<std::string>& stops, std::string_view input) {
  for (std::size_t end = 1; end <= input.size(); ++end) {
    std::string longest;
    for (const std::string& stop : stops) {
      if (input.substr(0, end).ends_with(stop) && stop.size() > longest.size()) {
        longest = stop;
      }
    }
    if (!longest.empty()) {
      return {.text = longest, .end = end};
    }
  }
  return {};
}

TEST(StopMatcher, FindsTheStringThatIsCompleteFirst) {
  EXPECT_EQ(FirstMatch({"abcd", "bc"}, "xabcd"), (Match{"bc", 4}));
  EXPECT_EQ(FirstMatch({"bc", "abc"}, "xabc"), (Match{"abc", 4}));
  EXPECT_EQ(FirstMatch({"aab"}, "aaab"), (Match{"aab", 4}));
  EXPECT_EQ(FirstMatch({"ab"}, "aaaa"), Match{});
}

TEST(StopMatcher, KnowsHowMuchMayStillBecomeAString) {
  StopMatcher matcher({"abab!", "b?"});
  std::vector<std::size_t> open;
  for (const char byte : std::string("xababab")) {
    matcher.Push(byte);
    open.push_back(matcher.open_bytes());
  }

  EXPECT_EQ(open, (std::vector<std::size_t>{0, 1, 2, 3, 4, 3, 4}));
}

TEST(StopMatcher, AgreesWithTheDefinitionOnRandomTexts) {
  constexpr int kSeed = 7;
  std::mt19937 random(kSeed);
  const auto text = [&random](int longest) {
    std::string result(1 + random() % static_cast<unsigned>(longest), 'a');
    for (char& c : result) {
      c = static_cast<char>('a' + random() % 2);
    }
    return result;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::vector<std::string> stops = {text(6), text(6), text(6)};
    const std::string input = text(24);

    ASSERT_EQ(FirstMatch(stops, input), NaiveFirstMatch(stops, input))
        << "seed " << kSeed << " round " << round << " input " << input;
  }
}

}  // namespace
}  // namespace baton
