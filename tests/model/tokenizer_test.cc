#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "common/utf8.h"
#include "model/byte_alphabet.h"
#include "model/checkpoint.h"
#include "model/model_path.h"
#include "tests/model/test_files.h"
#include "tools/tiny_tokenizer.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::uint32_t> Values(const absl::StatusOr<std::vector<TokenId>>& ids) {
  EXPECT_TRUE(ids.ok()) << ids.status();
  std::vector<std::uint32_t> values;
  for (const TokenId id : ids.ok() ? *ids : std::vector<TokenId>()) {
    values.push_back(id.value());
  }
  return values;
}

std::unique_ptr<Tokenizer> MakeTiny(int vocabulary = 512) {
  auto tokenizer = Tokenizer::Create(MakeTinyTokenizer(vocabulary));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string Join(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string bytes;
  for (const TokenId id : ids) {
    bytes.append(tokenizer.TokenBytes(id));
  }
  return bytes;
}

// "the| |cat": the pieces a text becomes.
std::string Pieces(const Tokenizer& tokenizer, std::string_view text, bool special = false) {
  const auto ids = tokenizer.Encode(text, special);
  EXPECT_TRUE(ids.ok()) << ids.status();
  std::string pieces;
  for (const TokenId id : *ids) {
    pieces.append(pieces.empty() ? "" : "|").append(tokenizer.TokenBytes(id));
  }
  return pieces;
}

// A vocabulary of the 256 bytes, the results of `merges`, and what the test adds.
TokenizerData MakeData(std::vector<std::pair<std::string, std::string>> merges) {
  TokenizerData data;
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back({AlphabetCharacter(static_cast<std::uint8_t>(byte)), TokenKind::kNormal});
  }
  for (const auto& [left, right] : merges) {
    data.tokens.push_back({left + right, TokenKind::kNormal});
  }
  data.merges = std::move(merges);
  return data;
}

TEST(ByteAlphabet, IsInvertibleAndPrintable) {
  EXPECT_EQ(AlphabetCharacter('a'), "a");
  EXPECT_EQ(AlphabetCharacter(' '), "\u0120");
  EXPECT_EQ(AlphabetCharacter('\n'), "\u010a");
  EXPECT_EQ(AlphabetCharacter(0xad), "\u0143");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string character = AlphabetCharacter(static_cast<std::uint8_t>(byte));
    EXPECT_EQ(BytesOfAlphabetText(character), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_FALSE(BytesOfAlphabetText("a b").has_value());
  EXPECT_FALSE(BytesOfAlphabetText("\u0144").has_value());
  EXPECT_FALSE(BytesOfAlphabetText("\xc4").has_value());
  EXPECT_FALSE(BytesOfAlphabetText("\u65e5").has_value());
}

TEST(Tokenizer, MergesLowestRankFirstThenLeftmost) {
  const auto tokenizer =
      Tokenizer::Create(MakeData({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "a"}}));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Pieces(**tokenizer, "abc"), "a|bc");
  EXPECT_EQ(Pieces(**tokenizer, "abab"), "ab|ab");
  EXPECT_EQ(Pieces(**tokenizer, "aaa"), "aaa");
  EXPECT_EQ(Pieces(**tokenizer, "aaaa"), "aa|aa");
  EXPECT_EQ(Pieces(**tokenizer, "aaaaa"), "aa|aaa");
  EXPECT_EQ(Pieces(**tokenizer, ""), "");
}

// The pieces of the GPT-2 pattern, with every numeric character alone. Tokens of whole pieces make
// the cuts visible.
TEST(Tokenizer, CutsTextAsThePatternSays) {
  const auto tokenizer = MakeTiny(1024);
  EXPECT_EQ(Pieces(*tokenizer, "in  in"), "in| | i|n");
  EXPECT_EQ(Pieces(*tokenizer, "in  1"), "in|  |1");
  EXPECT_EQ(Pieces(*tokenizer, "in 12"), "in| |1|2");
  EXPECT_EQ(Pieces(*tokenizer, "\n\n\nin"), "\n\n|\n|in");
  EXPECT_EQ(Pieces(*tokenizer, "\n\n\n1"), "\n\n|\n|1");
  EXPECT_EQ(Pieces(*tokenizer, "    "), "    ");
}

// U+180E is no white space, U+0085 is: so the last U+0085 before a letter stays a piece, and U+180E
// takes the space.
TEST(Tokenizer, KnowsUnicodeWhiteSpaceAndNumbers) {
  TokenizerData data = MakeData({});
  data.pre_tokenizer = PreTokenizerKind::kGpt2SplitDigits;
  const std::string space = AlphabetCharacter(' ');
  const auto add_merges = [&](const std::string& text) {
    std::string left = AlphabetCharacter(static_cast<std::uint8_t>(text[0]));
    for (std::size_t i = 1; i < text.size(); ++i) {
      const std::string right = AlphabetCharacter(static_cast<std::uint8_t>(text[i]));
      data.merges.emplace_back(left, right);
      left += right;
      data.tokens.push_back({left, TokenKind::kNormal});
    }
  };
  add_merges(" \u180e");
  add_merges(" \u2163");      // ROMAN NUMERAL FOUR, a number: never with the space
  add_merges(" \U00011f50");  // KAWI DIGIT ZERO, of Unicode 15
  const auto tokenizer = Tokenizer::Create(data);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Values((*tokenizer)->Encode(" \u180e", false)).size(), 1U);
  EXPECT_EQ(Values((*tokenizer)->Encode(" \u2163", false)).size(), 4U);
  EXPECT_EQ(Values((*tokenizer)->Encode(" \U00011f50", false)).size(), 5U);
}

TEST(Tokenizer, ControlTokensAreTextUnlessAskedFor) {
  const auto tokenizer = MakeTiny();
  EXPECT_EQ(Values(tokenizer->Encode("<|im_end|>", true)), (std::vector<std::uint32_t>{2}));
  EXPECT_GT(Values(tokenizer->Encode("<|im_end|>", false)).size(), 1U);
  EXPECT_EQ(Values(tokenizer->Encode("a<|im_start|><|im_end|>b", true)).size(), 4U);
  EXPECT_EQ(Values(tokenizer->Encode("<|im_en|>", true)),
            Values(tokenizer->Encode("<|im_en|>", false)));
  EXPECT_TRUE(tokenizer->IsControl(TokenId(1)));
  EXPECT_FALSE(tokenizer->IsControl(TokenId(3)));
  EXPECT_TRUE(tokenizer->IsEndOfSequence(TokenId(2)));
  EXPECT_FALSE(tokenizer->IsEndOfSequence(TokenId(1)));
}

TEST(Tokenizer, UserDefinedTokensAreAlwaysFoundLongestFirst) {
  TokenizerData data = MakeData({});
  data.tokens.push_back({"<a>", TokenKind::kUserDefined});
  data.tokens.push_back({"<a><b>", TokenKind::kUserDefined});
  data.tokens.push_back({"<c>", TokenKind::kControl});
  const auto tokenizer = Tokenizer::Create(data);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(Values((*tokenizer)->Encode("<a><b><a>", false)), ElementsAre(257, 256));
  EXPECT_EQ(Values((*tokenizer)->Encode("<c>", false)).size(), 3U);
  EXPECT_THAT(Values((*tokenizer)->Encode("<a><c>", true)), ElementsAre(256, 258));
}

TEST(Tokenizer, ByteWithoutATokenIsUnknownOrNothing) {
  TokenizerData data = MakeData({{"a", "b"}});
  data.tokens['x'] = {"<unk>", TokenKind::kControl};
  auto without = Tokenizer::Create(data);
  data.unknown = TokenId('x');
  auto with = Tokenizer::Create(data);
  ASSERT_TRUE(without.ok() && with.ok());
  EXPECT_THAT(Values((*without)->Encode("axb", false)), ElementsAre(256));
  EXPECT_THAT(Values((*with)->Encode("axb", false)), ElementsAre('a', 'x', 'b'));
}

// F30: refused with the place of the first bad byte; every valid code point passes.
TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const auto tokenizer = MakeTiny();
  for (const auto& [text, offset] : {std::pair<std::string, int>("abc\xff", 3),
                                     {"\xed\xa0\x80", 0},
                                     {"ab\xe2\x82", 2},
                                     {"\xc0\x80", 0}}) {
    const auto ids = tokenizer->Encode(text, false);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(ids.status().message()), HasSubstr("byte " + std::to_string(offset)));
  }
}

// F30: NUL, byte-order mark, emoji, right to left; and random text of every kind comes back byte
// for byte.
TEST(Tokenizer, RoundTripsEveryText) {
  constexpr unsigned kSeed = 11;
  std::mt19937 random(kSeed);
  const auto tokenizer = MakeTiny();
  std::vector<std::string> texts = {
      std::string("a\0b", 3),     "\xef\xbb\xbfx", "\U0001f469\u200d\U0001f467",
      "\u05e9\u05dc\u05d5\u05dd", "\u202e\u200f",  "\U0010ffff"};
  for (int n = 0; n < 300; ++n) {
    std::string bytes;
    for (unsigned length = random() % 200; length > 0; --length) {
      bytes.push_back(static_cast<char>(random() % 3 == 0 ? random() % 128 : random()));
    }
    texts.push_back(ReplaceInvalidUtf8(bytes));
  }
  for (const std::string& text : texts) {
    const auto ids = tokenizer->Encode(text, false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(Join(*tokenizer, *ids), text) << "seed " << kSeed;
  }
}

// F30: a megabyte that is one piece. A merge loop that searches the whole piece each time would
// take hours; the bound is a hundred times what this takes.
TEST(Tokenizer, LongPiecesTakeNearlyLinearTime) {
  constexpr std::size_t kMegabyte = 1 << 20;
  const auto tokenizer = MakeTiny(1024);
  const auto begin = std::chrono::steady_clock::now();
  for (const char* repeated : {" ", "th", "<|im_start|", "\u65e5"}) {
    std::string text;
    while (text.size() < kMegabyte) {
      text.append(repeated);
    }
    const auto ids = tokenizer->Encode(text, true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(Join(*tokenizer, *ids), text);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

TEST(Tokenizer, FingerprintCoversTokensMergesAndFlags) {
  const TokenizerData data = MakeTinyTokenizer(400);
  const auto fingerprint = [](const TokenizerData& changed) {
    const auto tokenizer = Tokenizer::Create(changed);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->fingerprint() : Digest{};
  };
  const Digest original = fingerprint(data);
  EXPECT_EQ(fingerprint(data), original);
  TokenizerData changed = data;
  changed.tokens[0].text = "<|other|>";
  EXPECT_NE(fingerprint(changed), original);
  changed = data;
  changed.tokens[0].kind = TokenKind::kUserDefined;
  EXPECT_NE(fingerprint(changed), original);
  changed = data;
  std::swap(changed.merges[0], changed.merges[5]);
  EXPECT_NE(fingerprint(changed), original);
  changed = data;
  changed.merges.pop_back();
  EXPECT_NE(fingerprint(changed), original);
}

struct BadData {
  const char* name;
  const char* problem;
  void (*damage)(TokenizerData& data);
};

class BadDataTest : public testing::TestWithParam<BadData> {};

TEST_P(BadDataTest, IsRefused) {
  TokenizerData data = MakeData({{"a", "b"}});
  GetParam().damage(data);

  const auto tokenizer = Tokenizer::Create(data);

  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(GetParam().problem));
}

INSTANTIATE_TEST_SUITE_P(
    Damage,
    BadDataTest,
    testing::Values(
        BadData{"NoTokens", "without tokens", [](TokenizerData& data) { data.tokens.clear(); }},
        BadData{"TokenTwice", "is there twice",
                [](TokenizerData& data) { data.tokens[40].text = "b"; }},
        BadData{"EmptyToken", "is empty", [](TokenizerData& data) { data.tokens[40].text = ""; }},
        BadData{"NotUtf8", "not UTF-8", [](TokenizerData& data) { data.tokens[40].text = "\xff"; }},
        BadData{"OutsideAlphabet", "alphabet",
                [](TokenizerData& data) { data.tokens[40].text = "a b"; }},
        BadData{"MergeTwice", "is there twice",
                [](TokenizerData& data) { data.merges.push_back(data.merges[0]); }},
        BadData{"MergeOfNoToken", "no token",
                [](TokenizerData& data) { data.merges.emplace_back("ab", "zz"); }},
        BadData{"MergeMakesNoToken", "no token",
                [](TokenizerData& data) { data.merges.emplace_back("a", "c"); }},
        BadData{"MergeMakesControl", "control token",
                [](TokenizerData& data) { data.tokens[256].kind = TokenKind::kControl; }},
        BadData{"BosOutside", "token 257", [](TokenizerData& data) { data.bos = TokenId(257); }},
        BadData{"EosOutside", "token 4000", [](TokenizerData& data) { data.eos = TokenId(4000); }},
        BadData{"UnknownOutside", "token 257",
                [](TokenizerData& data) { data.unknown = TokenId(257); }}),
    [](const auto& test) { return test.param.name; });

class RealTokenizerTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto path = ResolveModelPath("", CacheFolder());
    ASSERT_TRUE(path.ok()) << path.status();
    auto opened = Checkpoint::Open(*path);
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }
  const Tokenizer& tokenizer() const { return checkpoint_->tokenizer(); }

  std::unique_ptr<Checkpoint> checkpoint_;
};

// The vectors in which a tokenizer without digit splitting differs.
TEST_F(RealTokenizerTest, SplitsDigitsBeforeAnythingElse) {
  EXPECT_THAT(Values(tokenizer().Encode("  3", false)), ElementsAre(256, 35));
  EXPECT_THAT(Values(tokenizer().Encode("x   42\n  7", false)),
              ElementsAre(104, 333, 36, 34, 11181, 39));
  EXPECT_THAT(Values(tokenizer().Encode("a  3b", false)), ElementsAre(81, 256, 35, 82));
  EXPECT_THAT(Values(tokenizer().Encode("The capital of France is", false)),
              ElementsAre(504, 3575, 282, 4649, 314));
}

TEST_F(RealTokenizerTest, EveryTokenDecodesAndControlTokensAreTheFirst17) {
  EXPECT_EQ(tokenizer().vocabulary(), 49152);
  for (std::uint32_t id = 0; id < 49152; ++id) {
    EXPECT_FALSE(tokenizer().TokenBytes(TokenId(id)).empty()) << id;
    EXPECT_EQ(tokenizer().IsControl(TokenId(id)), id < 17) << id;
  }
  EXPECT_EQ(tokenizer().TokenBytes(TokenId(7042)), " Paris");
}

}  // namespace
}  // namespace baton
