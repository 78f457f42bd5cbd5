#include "frontend/text_stream.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "common/utf8.h"
#include "tools/tiny_tokenizer.h"

namespace baton {
namespace {

constexpr TokenId kEndOfText{0};
constexpr TokenId kEndOfTurn{2};

class TextStreamTest : public testing::Test {
 protected:
  TextStreamTest() : tokenizer_(*Tokenizer::Create(MakeTinyTokenizer(512))) {}

  // Every byte a token of its own: ids 3 to 258 are the bytes.
  static std::vector<TokenId> Bytes(std::string_view text) {
    std::vector<TokenId> ids;
    for (const char byte : text) {
      ids.emplace_back(3u + static_cast<std::uint8_t>(byte));
    }
    return ids;
  }

  struct Shown {
    std::vector<std::string> pieces;
    std::string stop_match;
    std::string text() const {
      std::string all;
      for (const std::string& piece : pieces) {
        all += piece;
      }
      return all;
    }
  };

  Shown Play(const std::vector<TokenId>& ids,
             const std::vector<std::string>& stop,
             std::uint32_t min_tokens = 0) {
    TextStream stream(*tokenizer_, stop, min_tokens);
    Shown shown;
    for (const TokenId id : ids) {
      shown.pieces.push_back(stream.Append(id));
      if (stream.stopped()) {
        break;
      }
    }
    if (!stream.stopped()) {
      shown.pieces.push_back(stream.Finish());
    }
    shown.stop_match = stream.stop_match();
    return shown;
  }

  const std::unique_ptr<Tokenizer> tokenizer_;
};

// B2, B3: characters of two to four bytes, cut into single bytes.
TEST_F(TextStreamTest, GivesWholeCharactersOnly) {
  const std::string text = "na\u00efve \u4f60\u597d \U0001F600!";
  const Shown shown = Play(Bytes(text), {});

  EXPECT_EQ(shown.text(), text);
  for (const std::string& piece : shown.pieces) {
    EXPECT_EQ(FindInvalidUtf8(piece), std::nullopt) << piece;
  }
}

TEST_F(TextStreamTest, ShowsAReplacementForACharacterThatNeverEnds) {
  EXPECT_EQ(Play(Bytes("a\xF0\x9F"), {}).text(), "a\uFFFD");
}

TEST_F(TextStreamTest, ControlTokensGiveNoText) {
  std::vector<TokenId> ids = Bytes("ab");
  ids.insert(ids.begin() + 1, kEndOfText);
  ids.push_back(kEndOfTurn);

  EXPECT_EQ(Play(ids, {}).text(), "ab");
}

// B8, B9: no part of the stop string is ever shown, whatever the cut.
TEST_F(TextStreamTest, NothingOfAStopStringIsShown) {
  const Shown shown = Play(Bytes("abcDEFGHIJklm"), {"DEFGHIJ"});

  EXPECT_EQ(shown.text(), "abc");
  EXPECT_EQ(shown.stop_match, "DEFGHIJ");
  EXPECT_EQ(shown.pieces.size(), 10u) << "ends with the token that completes the stop string";
}

TEST_F(TextStreamTest, WhatDoesNotBecomeAStopStringIsShownAtOnce) {
  const Shown shown = Play(Bytes("xDEFx"), {"DEFG"});

  EXPECT_EQ(shown.pieces, (std::vector<std::string>{"x", "", "", "", "DEFx", ""}));
  EXPECT_EQ(shown.stop_match, "");
}

TEST_F(TextStreamTest, HeldBackTextIsShownWhenTheSequenceEnds) {
  EXPECT_EQ(Play(Bytes("xDEF"), {"DEFG"}).text(), "xDEF");
}

// B10: the stop string ends inside a token; the text is cut exactly there.
TEST_F(TextStreamTest, CutsInsideAToken) {
  const std::vector<TokenId> there = *tokenizer_->Encode(" there", false);
  ASSERT_LT(there.size(), 6u) << "the tiny vocabulary merges letters";

  for (const std::string stop : {"e", "er", "h", "t", " ", "re"}) {
    const Shown shown = Play(there, {stop});
    const std::string text = " there";

    EXPECT_EQ(shown.text(), text.substr(0, text.find(stop))) << stop;
    EXPECT_EQ(shown.stop_match, stop);
  }
}

TEST_F(TextStreamTest, AStopStringBeforeMinTokensIsOrdinaryText) {
  EXPECT_EQ(Play(Bytes("a.b.c.d"), {"."}, 3).text(), "a.b");
  EXPECT_EQ(Play(Bytes("a.b.c.d"), {"."}, 2).text(), "a");
  // One that begins early and ends late enough counts, whole.
  EXPECT_EQ(Play(Bytes("ab--c"), {"--"}, 4).text(), "ab");
  EXPECT_EQ(Play(Bytes("ab--c"), {"--"}, 5).text(), "ab--c");
}

TEST_F(TextStreamTest, AgreesWithSearchingTheWholeText) {
  constexpr int kSeed = 11;
  std::mt19937 random(kSeed);
  const std::string alphabet[] = {"a", "b", "\u00e9", "\u4f60"};
  const auto text = [&](unsigned longest) {
    std::string result;
    for (unsigned i = 1 + random() % longest; i > 0; --i) {
      result += alphabet[random() % 4];
    }
    return result;
  };
  for (int round = 0; round < 1000; ++round) {
    const std::string all = text(20);
    const std::string stop = text(4);
    const Shown shown = Play(Bytes(all), {stop});

    ASSERT_EQ(shown.text(), all.substr(0, all.find(stop)))
        << "seed " << kSeed << " round " << round;
    for (const std::string& piece : shown.pieces) {
      ASSERT_EQ(FindInvalidUtf8(piece), std::nullopt);
    }
  }
}

}  // namespace
}  // namespace baton
