#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/transformer.h"
#include "model/model_path.h"
#include "tests/engine/engine_fixture.h"

namespace baton {
namespace {

// Logits of every asked row of one prompt, in one forward pass over blocks 0, 1, 2, ...
std::vector<std::vector<float>> LogitsOf(const Checkpoint& checkpoint,
                                         Backend& backend,
                                         const std::vector<TokenId>& prompt,
                                         const std::vector<int>& rows) {
  const ModelConfig& config = checkpoint.config();
  const int tokens = static_cast<int>(prompt.size());
  auto transformer = Transformer::Load(
      checkpoint, backend, {.rows = tokens, .logit_rows = static_cast<int>(rows.size())});
  EXPECT_TRUE(transformer.ok()) << transformer.status();
  const KvLayout layout = backend.LayoutFor(config.layers, config.kv_heads, config.head_dim);
  const int count = BlocksForTokens(tokens);
  auto memory = backend.Allocate(static_cast<std::size_t>(count) * layout.block_bytes());
  EXPECT_TRUE(memory.ok()) << memory.status();
  std::vector<BlockId> blocks;
  for (int i = 0; i < count; ++i) {
    blocks.emplace_back(static_cast<std::uint32_t>(i));
  }
  ForwardBatch batch;
  batch.segments.push_back({.blocks = blocks, .tokens = tokens});
  for (int i = 0; i < tokens; ++i) {
    batch.AddRow(prompt[static_cast<std::size_t>(i)], i, 0);
  }
  batch.logit_rows = rows;
  const auto logits =
      (*transformer)->Forward(batch, MakeKvPoolView((*memory)->data(), count, layout), {});
  EXPECT_TRUE(logits.ok()) << logits.status();
  std::vector<std::vector<float>> result;
  for (int i = 0; i < logits->rows(); ++i) {
    result.emplace_back(logits->Row(i), logits->Row(i) + config.vocabulary);
  }
  return result;
}

std::vector<TokenId> ToTokens(const nlohmann::json& ids) {
  std::vector<TokenId> tokens;
  for (const auto& id : ids) {
    tokens.emplace_back(id.get<std::uint32_t>());
  }
  return tokens;
}

// Against Hugging Face transformers in float32 on the same dequantized weights
// (tests/reference/make_logits.py).
//
// Bounds: weights and the inputs of every matrix product are rounded to bf16 (8 bits of mantissa)
// through 30 layers. Seen over the four code paths: largest difference 0.28 of logits up to 38,
// root mean square 0.015 of that of the logits; the bounds are twice that. Greedy choices must
// agree wherever the reference's margin is above the first.
class LogitsTest : public testing::TestWithParam<const char*> {};

TEST_P(LogitsTest, AgreeWithTransformersInFloat32) {
  constexpr double kLargest = 0.6;    // absolute difference of one logit
  constexpr double kRelative = 0.03;  // root mean square of the differences over that of the logits
  auto backend = CreateCpuBackend({.isa = GetParam()});
  if (absl::IsFailedPrecondition(backend.status())) {
    GTEST_SKIP() << backend.status();
  }
  ASSERT_TRUE(backend.ok()) << backend.status();
  const char* cache = std::getenv("BATON_CACHE");
  const char* home = std::getenv("HOME");
  const std::string folder =
      cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache/baton";
  const auto path = ResolveModelPath("", folder);
  ASSERT_TRUE(path.ok()) << path.status();
  const auto checkpoint = Checkpoint::Open(*path, folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::ifstream file("tests/reference/data/logits.json");
  const nlohmann::json reference = nlohmann::json::parse(file);
  double largest_seen = 0;
  double relative_seen = 0;
  int positions = 0;
  for (const auto& prompt : reference.at("prompts")) {
    std::vector<int> rows;
    for (const auto& position : prompt.at("positions")) {
      rows.push_back(position.at("position").get<int>());
    }
    const auto logits = LogitsOf(**checkpoint, **backend, ToTokens(prompt.at("ids")), rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto& expected = prompt.at("positions")[i];
      SCOPED_TRACE(prompt.at("name").get<std::string>() + " position " + std::to_string(rows[i]));
      double squares = 0;
      double total = 0;
      for (const char* kind : {"top", "sample"}) {
        const auto& ids = expected.at(std::string(kind) + "_ids");
        const auto& values = expected.at(std::string(kind) + "_logits");
        for (std::size_t k = 0; k < ids.size(); ++k) {
          const double ours = logits[i][ids[k].get<std::size_t>()];
          const double theirs = values[k].get<double>();
          ASSERT_TRUE(std::isfinite(ours));
          EXPECT_NEAR(ours, theirs, kLargest) << "token " << ids[k];
          largest_seen = std::max(largest_seen, std::abs(ours - theirs));
          squares += (ours - theirs) * (ours - theirs);
          total += theirs * theirs;
        }
      }
      relative_seen = std::max(relative_seen, std::sqrt(squares / total));
      EXPECT_LE(std::sqrt(squares / total), kRelative);
      if (expected.at("margin").get<double>() > kLargest) {
        const auto top = std::max_element(logits[i].begin(), logits[i].end()) - logits[i].begin();
        EXPECT_EQ(top, expected.at("top_ids")[0].get<int>());
      }
      ++positions;
    }
  }
  EXPECT_EQ(positions, 12);
  std::printf("%s: largest difference %.3f, relative %.4f\n", GetParam(), largest_seen,
              relative_seen);
}

INSTANTIATE_TEST_SUITE_P(EveryIsa,
                         LogitsTest,
                         testing::Values("amx", "avx512bf16", "avx2", "plain"),
                         [](const auto& instance) { return std::string(instance.param); });

// GGUF files rotate adjacent pairs, Hugging Face files half-split ones: the same model both ways,
// the same bits out.
TEST(ModelFormats, TheSameModelInBothFormatsGivesTheSameLogits) {
  for (const bool tied : {true, false}) {
    const TinyModelOptions options{.tied_head = tied, .shards = 2};
    const std::string base = testing::TempDir() + "formats_" + std::to_string(getpid());
    ASSERT_TRUE(WriteTinyGguf(options, base + ".gguf").ok());
    ASSERT_TRUE(WriteTinyHuggingFace(options, base + "_hf").ok());
    const auto gguf = Checkpoint::Open(base + ".gguf");
    const auto hugging_face = Checkpoint::Open(base + "_hf");
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    ASSERT_TRUE(hugging_face.ok()) << hugging_face.status();
    std::vector<TokenId> prompt;
    for (std::uint32_t i = 0; i < 40; ++i) {
      prompt.emplace_back(3 + (i * 37) % 500);
    }
    const std::unique_ptr<Backend> backend = MakeBackend();
    EXPECT_EQ(LogitsOf(**gguf, *backend, prompt, {0, 20, 39}),
              LogitsOf(**hugging_face, *backend, prompt, {0, 20, 39}));
  }
}

}  // namespace
}  // namespace baton
