#include "tools/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/sha256.h"
#include "model/checkpoint.h"
#include "tests/model/test_files.h"
#include "tools/random_weights.h"

namespace baton {
namespace {

constexpr ElementType kTypes[] = {
    ElementType::kF32,  ElementType::kF16,  ElementType::kBF16, ElementType::kQ4_0,
    ElementType::kQ4_1, ElementType::kQ5_0, ElementType::kQ5_1, ElementType::kQ8_0,
    ElementType::kQ4_K, ElementType::kQ5_K, ElementType::kQ6_K,
};

// Golden: the same bytes on every machine, or expected tokens elsewhere would mean nothing.
TEST(TinyModel, DefaultFileIsAlwaysTheSame) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteTinyGguf({}, directory / "a.gguf").ok());
  EXPECT_EQ(ToHex(Sha256Of(ReadFile(directory / "a.gguf"))),
            "3f14105bab35f33b509ddccec3088e253e7b454cb186d9a4e384013fb8b89f81");
  ASSERT_TRUE(WriteTinyGguf({.seed = 2}, directory / "b.gguf").ok());
  EXPECT_NE(ReadFile(directory / "a.gguf"), ReadFile(directory / "b.gguf"));
}

TEST(TinyModel, OptionsThatMakeNoModelAreRefused) {
  const TemporaryDirectory directory;
  for (const TinyModelOptions& options : {
           TinyModelOptions{.layers = 0},
           TinyModelOptions{.heads = 3, .kv_heads = 2},
           TinyModelOptions{.head_dim = 63},
           TinyModelOptions{.vocabulary = 258},
           TinyModelOptions{.vocabulary = 1025},
           TinyModelOptions{.hidden = 200, .type = ElementType::kQ8_0},
           TinyModelOptions{.type = ElementType::kQ6_K},
           TinyModelOptions{.shards = 0},
       }) {
    EXPECT_EQ(WriteTinyGguf(options, directory / "a.gguf").code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(WriteTinyHuggingFace(options, directory / "a").code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(WriteTinyGguf({}, directory / "absent/a.gguf").ok());
}

TEST(TinyModel, EveryVocabularyIsATokenizer) {
  const TemporaryDirectory directory;
  for (const int vocabulary : {259, 260, 512, 1023, 1024}) {
    ASSERT_TRUE(WriteTinyGguf({.layers = 1, .vocabulary = vocabulary}, directory / "a.gguf").ok());
    const auto checkpoint = Checkpoint::Open(directory / "a.gguf");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->tokenizer().vocabulary(), vocabulary);
    EXPECT_TRUE((*checkpoint)->chat_format().supported());
  }
}

// The random blocks of every type have the spread that was asked for, so that models of all types
// behave alike.
TEST(RandomWeights, HaveMeanZeroAndTheIntendedSpread) {
  const ModelConfig config = {.layers = 1,
                              .hidden = 256,
                              .feed_forward = 256,
                              .heads = 4,
                              .kv_heads = 4,
                              .head_dim = 64,
                              .vocabulary = 512};
  for (const ElementType type : kTypes) {
    const RandomWeight weight = MakeRandomWeight(config, {.kind = WeightKind::kUp}, type, 1);
    double sum = 0;
    double squares = 0;
    std::vector<float> row(256);
    for (const std::string& bytes : weight.rows) {
      Dequantize(type, bytes, row);
      for (const float value : row) {
        sum += value;
        squares += static_cast<double>(value) * value;
      }
    }
    const double count = 256.0 * 256.0;
    // One part in 16 of the inputs, give or take what random sub-scales do.
    EXPECT_NEAR(std::sqrt(squares / count), 1.0 / 16, 0.4 / 16) << NameOf(type);
    EXPECT_NEAR(sum / count, 0, 0.2 / 16) << NameOf(type);
  }
}

}  // namespace
}  // namespace baton
