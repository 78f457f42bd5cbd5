#include "model/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "common/utf8.h"
#include "tools/tiny_tokenizer.h"

namespace baton {
namespace {

using ControlTokens = IncrementalDetokenizer::ControlTokens;

class DetokenizerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::Create(MakeTinyTokenizer(512));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  // The token of a single byte; see tiny_model.h.
  static TokenId ByteToken(unsigned char byte) { return TokenId(3U + byte); }

  // What each token adds, and the flush at the end.
  std::vector<std::string> Stream(const std::vector<TokenId>& ids,
                                  ControlTokens control = ControlTokens::kSkip) const {
    IncrementalDetokenizer detokenizer(*tokenizer_, control);
    std::vector<std::string> deltas;
    for (const TokenId id : ids) {
      deltas.push_back(detokenizer.Append(id));
    }
    deltas.push_back(detokenizer.Flush());
    return deltas;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

// B2, B3: an emoji, accented Latin and CJK that fall apart into bytes come out whole.
TEST_F(DetokenizerTest, EmitsOnlyWholeCharacters) {
  for (const std::string text : {"\U0001f600", "\u00e9", "\u65e5"}) {
    std::vector<TokenId> ids;
    for (const char byte : text) {
      ids.push_back(ByteToken(static_cast<unsigned char>(byte)));
    }
    std::vector<std::string> expected(text.size() - 1, "");
    expected.push_back(text);
    expected.emplace_back();
    EXPECT_EQ(Stream(ids), expected);
  }
}

TEST_F(DetokenizerTest, FlushReplacesWhatNeverBecameACharacter) {
  EXPECT_EQ(Stream({ByteToken('a'), ByteToken(0xf0), ByteToken(0x9f), ByteToken(0x98)}),
            (std::vector<std::string>{"a", "", "", "", "\ufffd"}));
  EXPECT_EQ(Stream({}), std::vector<std::string>{""});
}

TEST_F(DetokenizerTest, ReplacesMalformedBytesInside) {
  EXPECT_EQ(Stream({ByteToken(0xff), ByteToken('a'), ByteToken(0xe2), ByteToken('b')}),
            (std::vector<std::string>{"\ufffd", "a", "",
                                      "\ufffd"
                                      "b",
                                      ""}));
}

TEST_F(DetokenizerTest, ControlTokensGiveTextOnlyWhenKept) {
  const std::vector<TokenId> ids = {TokenId(1), ByteToken('a'), TokenId(2)};
  EXPECT_EQ(Stream(ids), (std::vector<std::string>{"", "a", "", ""}));
  EXPECT_EQ(Stream(ids, ControlTokens::kKeep),
            (std::vector<std::string>{"<|im_start|>", "a", "<|im_end|>", ""}));
}

// B2: every delta is valid UTF-8, and together they are the text decoded at once.
TEST_F(DetokenizerTest, DeltasAddUpToTheWholeText) {
  constexpr unsigned kSeed = 3;
  std::mt19937 random(kSeed);
  for (int n = 0; n < 500; ++n) {
    std::vector<TokenId> ids;
    std::string bytes;
    for (unsigned length = random() % 40; length > 0; --length) {
      // Mostly the bytes of long characters, so that many are open and many are broken.
      const TokenId id = random() % 4 == 0
                             ? TokenId(3U + static_cast<std::uint32_t>(random() % 509))
                             : ByteToken(static_cast<unsigned char>(0x80 + random() % 128));
      ids.push_back(id);
      bytes.append(tokenizer_->TokenBytes(id));
    }
    std::string joined;
    for (const std::string& delta : Stream(ids)) {
      EXPECT_FALSE(FindInvalidUtf8(delta).has_value());
      joined.append(delta);
    }
    EXPECT_EQ(joined, ReplaceInvalidUtf8(bytes)) << "run " << n << ", seed " << kSeed;
  }
}

}  // namespace
}  // namespace baton
