// Token ids of 500 varied texts against those of the Hugging Face `tokenizers` library
// (tests/reference), in both modes.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "model/checkpoint.h"
#include "model/model_path.h"
#include "tests/model/test_files.h"

namespace baton {
namespace {

constexpr char kTexts[] = "tests/reference/data/tokenizer_texts.json";

std::vector<std::uint32_t> Encode(const Tokenizer& tokenizer,
                                  const std::string& text,
                                  bool special) {
  const auto ids = tokenizer.Encode(text, special);
  EXPECT_TRUE(ids.ok()) << ids.status();
  std::vector<std::uint32_t> values;
  for (const TokenId id : ids.ok() ? *ids : std::vector<TokenId>()) {
    values.push_back(id.value());
  }
  return values;
}

TEST(TokenizerOracle, AgreesOnEveryText) {
  const auto path = ResolveModelPath("", CacheFolder());
  ASSERT_TRUE(path.ok()) << path.status();
  const auto checkpoint = Checkpoint::Open(*path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const Tokenizer& tokenizer = (*checkpoint)->tokenizer();
  const nlohmann::json texts = nlohmann::json::parse(ReadFile(kTexts));
  ASSERT_EQ(texts.size(), 500U);
  for (const nlohmann::json& entry : texts) {
    std::string text;
    ASSERT_TRUE(absl::Base64Unescape(entry["text_base64"].get<std::string>(), &text));
    EXPECT_EQ(Encode(tokenizer, text, false), entry["plain"].get<std::vector<std::uint32_t>>())
        << absl::CHexEscape(text);
    EXPECT_EQ(Encode(tokenizer, text, true), entry["special"].get<std::vector<std::uint32_t>>())
        << absl::CHexEscape(text);
  }
}

}  // namespace
}  // namespace baton
