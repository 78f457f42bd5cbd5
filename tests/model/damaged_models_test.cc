// F45, B64: a model that breaks a rule ends in an error that names the file and the place, never in
// a crash.
#include "tests/model/damaged_models.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "common/file.h"
#include "model/checkpoint.h"
#include "tests/model/test_files.h"
#include "tools/tiny_model.h"

namespace baton {
namespace {

using testing::HasSubstr;

void ExpectRefused(const std::vector<DamagedModel>& models) {
  for (const DamagedModel& model : models) {
    const absl::Status status = Checkpoint::Open(model.path).status();
    ASSERT_FALSE(status.ok()) << model.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(model.names_file)) << model.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(model.names_item)) << model.name;
    EXPECT_TRUE(status.code() == absl::StatusCode::kInvalidArgument ||
                status.code() == absl::StatusCode::kUnimplemented || model.names_item.empty())
        << model.name << ": " << status;
    if (!model.names_item.empty() && model.names_item != "pickle") {
      EXPECT_THAT(std::string(status.message()), HasSubstr(" at byte ")) << model.name;
    }
  }
}

TEST(DamagedGguf, IsRefusedNamingFileAndPlace) {
  const TemporaryDirectory directory;
  const std::vector<DamagedModel> models = WriteDamagedGgufs(directory.path());
  EXPECT_GE(models.size(), 100U);
  EXPECT_TRUE(Checkpoint::Open(directory / "sound.gguf").ok());
  ExpectRefused(models);
}

TEST(DamagedHuggingFace, IsRefusedNamingFileAndPlace) {
  const TemporaryDirectory directory;
  const std::vector<DamagedModel> models = WriteDamagedHuggingFace(directory.path());
  EXPECT_GE(models.size(), 100U);
  EXPECT_TRUE(Checkpoint::Open(directory / "sound").ok());
  EXPECT_TRUE(Checkpoint::Open(directory / "sound-sharded").ok());
  ExpectRefused(models);
}

// Opens the model and, if that works, reads all of it and tokenizes: an access out of bounds shows
// under the address sanitizer.
void OpenAndUse(const std::string& path) {
  const auto opened = Checkpoint::Open(path);
  if (!opened.ok()) {
    EXPECT_FALSE(opened.status().message().empty());
    return;
  }
  const Checkpoint& checkpoint = **opened;
  std::vector<float> values;
  const auto read = [&](WeightKind kind, int layer) {
    const WeightShape shape = checkpoint.Shape(kind);
    values.resize(static_cast<std::size_t>(shape.rows) * static_cast<std::size_t>(shape.columns));
    // Whether the values are finite is not the question.
    checkpoint.ReadRows(kind, LayerIndex(static_cast<std::uint32_t>(layer)), 0, shape.rows, values)
        .IgnoreError();
  };
  read(WeightKind::kTokenEmbedding, 0);
  read(WeightKind::kOutputNorm, 0);
  read(WeightKind::kHead, 0);
  for (int layer = 0; layer < checkpoint.config().layers; ++layer) {
    for (const WeightKind kind : kLayerWeights) {
      read(kind, layer);
    }
  }
  const auto ids = checkpoint.tokenizer().Encode("the <|im_end|> 12", true);
  ASSERT_TRUE(ids.ok()) << ids.status();
  for (const TokenId id : *ids) {
    EXPECT_LT(id.value(), static_cast<std::uint32_t>(checkpoint.config().vocabulary));
  }
}

// Changes one byte of a file at a time and puts it back.
class ByteFlipper {
 public:
  explicit ByteFlipper(const std::string& path)
      : bytes_(ReadFile(path)), fd_(open(path.c_str(), O_WRONLY | O_CLOEXEC)) {
    EXPECT_TRUE(fd_.ok());
  }

  std::size_t size() const { return bytes_.size(); }

  void Flip(std::size_t offset, unsigned mask) {
    Write(offset, static_cast<char>(bytes_[offset] ^ mask));
  }
  void Restore(std::size_t offset) { Write(offset, bytes_[offset]); }

 private:
  void Write(std::size_t offset, char byte) {
    EXPECT_EQ(pwrite(fd_.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  }

  const std::string bytes_;
  const UniqueFd fd_;
};

// Every byte of the first `dense` and every 61st behind them, each with a mask that changes from
// byte to byte.
void FlipBytes(const std::string& file, std::size_t dense, const std::string& model) {
  constexpr std::size_t kSparse = 61;
  constexpr unsigned kMasks[] = {0xff, 0x80, 0x01, 0x20, 0x7f};
  ByteFlipper flipper(file);
  for (std::size_t offset = 0; offset < flipper.size(); offset += offset < dense ? 1 : kSparse) {
    flipper.Flip(offset, kMasks[offset % std::size(kMasks)]);
    OpenAndUse(model);
    flipper.Restore(offset);
    ASSERT_FALSE(testing::Test::HasFailure()) << file << ", byte " << offset;
  }
  EXPECT_TRUE(Checkpoint::Open(model).ok());
}

constexpr TinyModelOptions kSmallest = {.layers = 1,
                                        .hidden = 8,
                                        .feed_forward = 8,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .head_dim = 4,
                                        .vocabulary = 264};

TEST(FlippedByte, NeverCrashesGguf) {
  const TemporaryDirectory directory;
  const std::string path = directory / "tiny.gguf";
  ASSERT_TRUE(WriteTinyGguf(kSmallest, path).ok());
  // The tokens' text in the middle of the metadata is dull; the entries of the tensors behind it
  // are not.
  FlipBytes(path, ReadFile(path).rfind("output_norm.weight") + 100, path);
}

TEST(FlippedByte, NeverCrashesSafetensors) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteTinyHuggingFace(kSmallest, directory / "tiny").ok());
  const std::string path = directory / "tiny/model.safetensors";
  FlipBytes(path, ReadFile(path).find("}}") + 50, directory / "tiny");
}

TEST(FlippedByte, NeverCrashesJson) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteTinyHuggingFace(kSmallest, directory / "tiny").ok());
  for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    const std::string path = (directory / "tiny/") + file;
    FlipBytes(path, ReadFile(path).size(), directory / "tiny");
  }
}

}  // namespace
}  // namespace baton
