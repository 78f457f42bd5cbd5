#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "model/fingerprint.h"
#include "model/model_path.h"
#include "tests/model/test_files.h"
#include "tools/tiny_model.h"

namespace baton {
namespace {

using testing::HasSubstr;

std::vector<float> ReadAll(const Checkpoint& checkpoint, WeightKind kind, LayerIndex layer) {
  const WeightShape shape = checkpoint.Shape(kind);
  std::vector<float> values(static_cast<std::size_t>(shape.rows) *
                            static_cast<std::size_t>(shape.columns));
  const absl::Status status = checkpoint.ReadRows(kind, layer, 0, shape.rows, values);
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

void ExpectSameWeights(const Checkpoint& a, const Checkpoint& b) {
  for (const WeightKind kind :
       {WeightKind::kTokenEmbedding, WeightKind::kOutputNorm, WeightKind::kHead}) {
    EXPECT_EQ(ReadAll(a, kind, LayerIndex(0)), ReadAll(b, kind, LayerIndex(0)));
  }
  for (int layer = 0; layer < a.config().layers; ++layer) {
    for (const WeightKind kind : kLayerWeights) {
      const LayerIndex index(static_cast<std::uint32_t>(layer));
      EXPECT_EQ(ReadAll(a, kind, index), ReadAll(b, kind, index))
          << "weight " << static_cast<int>(kind) << " of layer " << layer;
    }
  }
}

struct Variant {
  const char* name;
  TinyModelOptions options;
};

class BothFormatsTest : public testing::TestWithParam<Variant> {};

TEST_P(BothFormatsTest, HaveTheSameConfigTokenizerAndWeights) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteTinyGguf(GetParam().options, directory / "tiny.gguf").ok());
  ASSERT_TRUE(WriteTinyHuggingFace(GetParam().options, directory / "tiny").ok());

  const auto gguf = Checkpoint::Open(directory / "tiny.gguf");
  const auto hugging_face = Checkpoint::Open(directory / "tiny");

  ASSERT_TRUE(gguf.ok()) << gguf.status();
  ASSERT_TRUE(hugging_face.ok()) << hugging_face.status();
  EXPECT_EQ((*gguf)->config(), (*hugging_face)->config());
  EXPECT_EQ((*gguf)->config().tied_head, GetParam().options.tied_head);
  EXPECT_EQ((*gguf)->tokenizer().fingerprint(), (*hugging_face)->tokenizer().fingerprint());
  EXPECT_EQ((*gguf)->chat_format().default_system(),
            (*hugging_face)->chat_format().default_system());
  EXPECT_NE((*gguf)->fingerprint(), (*hugging_face)->fingerprint());
  ExpectSameWeights(**gguf, **hugging_face);
}

TinyModelOptions WithType(ElementType type) {
  return {.hidden = 256, .feed_forward = 512, .heads = 4, .kv_heads = 2, .type = type};
}

INSTANTIATE_TEST_SUITE_P(
    Variants,
    BothFormatsTest,
    testing::Values(Variant{"Default", {}},
                    Variant{"Untied", {.tied_head = false}},
                    Variant{"Sharded", {.layers = 3, .shards = 4}},
                    Variant{"WideHeads", {.hidden = 96, .heads = 4, .kv_heads = 2, .head_dim = 80}},
                    Variant{"F16", WithType(ElementType::kF16)},
                    Variant{"BF16", WithType(ElementType::kBF16)},
                    Variant{"Q4_0", WithType(ElementType::kQ4_0)},
                    Variant{"Q4_1", WithType(ElementType::kQ4_1)},
                    Variant{"Q5_0", WithType(ElementType::kQ5_0)},
                    Variant{"Q5_1", WithType(ElementType::kQ5_1)},
                    Variant{"Q8_0", WithType(ElementType::kQ8_0)},
                    Variant{"Q4_K", WithType(ElementType::kQ4_K)},
                    Variant{"Q5_K", WithType(ElementType::kQ5_K)},
                    Variant{"Q6_K", WithType(ElementType::kQ6_K)}),
    [](const auto& test) { return test.param.name; });

class TinyCheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(WriteTinyGguf({}, path()).ok());
    auto opened = Checkpoint::Open(path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }
  std::string path() const { return directory_ / "tiny.gguf"; }

  TemporaryDirectory directory_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(TinyCheckpointTest, ReadsAnyRangeOfRows) {
  const std::vector<float> all = ReadAll(*checkpoint_, WeightKind::kQuery, LayerIndex(1));
  const auto columns = static_cast<std::size_t>(checkpoint_->Shape(WeightKind::kQuery).columns);
  for (const auto& [first, count] : {std::pair(0, 1), std::pair(31, 2), std::pair(63, 17),
                                     std::pair(191, 1), std::pair(192, 0)}) {
    std::vector<float> rows(static_cast<std::size_t>(count) * columns);
    ASSERT_TRUE(checkpoint_->ReadRows(WeightKind::kQuery, LayerIndex(1), first, count, rows).ok());
    const auto begin =
        all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * columns);
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), begin)) << first;
  }
}

TEST_F(TinyCheckpointTest, TiedHeadIsTheEmbedding) {
  EXPECT_EQ(checkpoint_->Shape(WeightKind::kHead), (WeightShape{512, 192}));
  EXPECT_EQ(ReadAll(*checkpoint_, WeightKind::kHead, LayerIndex(0)),
            ReadAll(*checkpoint_, WeightKind::kTokenEmbedding, LayerIndex(0)));
}

TEST_F(TinyCheckpointTest, RefusesRangesThatDoNotFit) {
  std::vector<float> row(192);
  const auto read = [&](int layer, int first, int count, std::size_t size) {
    row.resize(size);
    return checkpoint_
        ->ReadRows(WeightKind::kKey, LayerIndex(static_cast<std::uint32_t>(layer)), first, count,
                   row)
        .code();
  };
  EXPECT_EQ(read(0, 0, 1, 192), absl::StatusCode::kOk);
  EXPECT_EQ(read(2, 0, 1, 192), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, 64, 1, 192), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, -1, 1, 192), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, 0, -1, 192), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, 1, std::numeric_limits<int>::max(), 192), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, 0, 1, 191), absl::StatusCode::kInvalidArgument);
}

TEST_F(TinyCheckpointTest, ValueThatIsNotFiniteIsDataLossWithItsPlace) {
  std::string file = ReadFile(path());
  for (std::size_t i = 1; i <= 4; ++i) {
    file[file.size() - i] = '\xff';  // the last value of the last norm
  }
  WriteFile(path(), file);
  const auto damaged = Checkpoint::Open(path());
  ASSERT_TRUE(damaged.ok()) << damaged.status();
  std::vector<float> norm(192);

  const absl::Status status =
      (*damaged)->ReadRows(WeightKind::kOutputNorm, LayerIndex(0), 0, 1, norm);

  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor 'output_norm.weight' at byte "));
}

TEST_F(TinyCheckpointTest, FingerprintFollowsTheBytesNotThePath) {
  WriteFile(directory_ / "copy.gguf", ReadFile(path()));
  std::string other = ReadFile(path());
  other.back() = static_cast<char>(other.back() ^ 1);
  WriteFile(directory_ / "other.gguf", other);

  const auto copy = Checkpoint::Open(directory_ / "copy.gguf");
  const auto changed = Checkpoint::Open(directory_ / "other.gguf");

  ASSERT_TRUE(copy.ok() && changed.ok());
  EXPECT_EQ((*copy)->fingerprint(), checkpoint_->fingerprint());
  EXPECT_NE((*changed)->fingerprint(), checkpoint_->fingerprint());
  EXPECT_EQ((*changed)->tokenizer().fingerprint(), checkpoint_->tokenizer().fingerprint());
}

TEST(Checkpoint, HuggingFaceFingerprintCoversConfigAndEveryShard) {
  const TemporaryDirectory directory;
  const auto fingerprint = [&] {
    const auto opened = Checkpoint::Open(directory / "tiny");
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? (*opened)->fingerprint() : Digest{};
  };
  ASSERT_TRUE(WriteTinyHuggingFace({.shards = 2}, directory / "tiny").ok());
  const Digest before = fingerprint();
  for (const char* name :
       {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    const std::string path = (directory / "tiny/") + name;
    const std::string kept = ReadFile(path);
    std::string changed = kept;
    changed.back() = static_cast<char>(changed.back() ^ 1);
    WriteFile(path, changed);
    EXPECT_NE(fingerprint(), before) << name;
    WriteFile(path, kept);
  }
  EXPECT_EQ(fingerprint(), before);
  WriteFile(directory / "tiny/config.json", ReadFile(directory / "tiny/config.json") + "\n");
  EXPECT_NE(fingerprint(), before);
}

TEST(Checkpoint, PathThatIsNoModelIsAClearError) {
  const TemporaryDirectory directory;
  EXPECT_EQ(Checkpoint::Open(directory / "absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Checkpoint::Open(directory.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Checkpoint::Open("/dev/null").status().code(), absl::StatusCode::kInvalidArgument);
  WriteFile(directory / "empty.gguf", "");
  EXPECT_EQ(Checkpoint::Open(directory / "empty.gguf").status().code(),
            absl::StatusCode::kInvalidArgument);
  std::filesystem::create_symlink("loop", directory / "loop");
  const absl::Status loop = Checkpoint::Open(directory / "loop").status();
  EXPECT_FALSE(loop.ok());
  EXPECT_THAT(std::string(loop.message()), HasSubstr("loop"));
}

TEST(RealModel, HasTheNumbersOfItsModelCard) {
  const auto path = ResolveModelPath("", CacheFolder());
  ASSERT_TRUE(path.ok()) << path.status();

  const auto opened = Checkpoint::Open(*path);

  ASSERT_TRUE(opened.ok()) << opened.status();
  const ModelConfig& config = (*opened)->config();
  EXPECT_EQ(config.layers, 30);
  EXPECT_EQ(config.hidden, 576);
  EXPECT_EQ(config.feed_forward, 1536);
  EXPECT_EQ(config.heads, 9);
  EXPECT_EQ(config.kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.vocabulary, 49152);
  EXPECT_EQ(config.context_tokens, 8192);
  EXPECT_EQ(config.rope_base, 100000);
  EXPECT_EQ(static_cast<float>(config.rms_epsilon), 1e-5F);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ((*opened)->tokenizer().bos(), TokenId(1));
  EXPECT_EQ((*opened)->tokenizer().eos(), TokenId(2));
}

}  // namespace
}  // namespace baton
