#include "tests/gpu/shape_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/weight_table.h"
#include "tools/tiny_model.h"

namespace baton {
namespace {

struct NamedWeight {
  std::string name;
  WeightKind kind;
  WeightShape shape;

  std::size_t values() const {
    return static_cast<std::size_t>(shape.rows) * static_cast<std::size_t>(shape.columns);
  }
};

std::vector<NamedWeight> ListWeights(const ModelConfig& config) {
  std::vector<NamedWeight> weights;
  const auto add = [&](WeightKind kind, int layer) {
    const WeightName name{.kind = kind, .layer = LayerIndex(static_cast<std::uint32_t>(layer))};
    weights.push_back({.name = TensorName(NamingScheme::kHuggingFace, name),
                       .kind = kind,
                       .shape = ShapeOf(config, kind)});
  };
  add(WeightKind::kTokenEmbedding, 0);
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const WeightKind kind : kLayerWeights) {
      add(kind, layer);
    }
  }
  add(WeightKind::kOutputNorm, 0);
  if (!config.tied_head) {
    add(WeightKind::kHead, 0);
  }
  return weights;
}

// Numbers of the shape over those of a tiny model's config.json.
absl::Status RewriteConfig(const ModelConfig& config, const std::filesystem::path& file) {
  std::ifstream input(file);
  nlohmann::json json = nlohmann::json::parse(input, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InternalError(absl::StrCat("no config in ", file.string()));
  }
  json["_name_or_path"] = config.name;
  json["num_hidden_layers"] = config.layers;
  json["hidden_size"] = config.hidden;
  json["intermediate_size"] = config.feed_forward;
  json["num_attention_heads"] = config.heads;
  json["num_key_value_heads"] = config.kv_heads;
  json["head_dim"] = config.head_dim;
  json["vocab_size"] = config.vocabulary;
  json["max_position_embeddings"] = config.context_tokens;
  json["rope_theta"] = config.rope_base;
  json["tie_word_embeddings"] = config.tied_head;
  json["torch_dtype"] = "bfloat16";
  std::ofstream output(file, std::ios::trunc);
  output << json.dump(2);
  output.close();
  return output ? absl::OkStatus()
                : absl::UnavailableError(absl::StrCat("write ", file.string(), ": failed"));
}

// bf16 with a random sign and fraction, between 1 and 2 times a power of two near 1 /
// sqrt(columns).
class RandomValues {
 public:
  void Fill(const NamedWeight& weight, std::span<std::uint64_t> four_at_a_time) {
    const int exponent =
        static_cast<int>(std::floor(std::log2(0.7 / std::sqrt(weight.shape.columns))));
    const auto bits = static_cast<std::uint64_t>(exponent + 127) << 7;
    const std::uint64_t exponents = bits | bits << 16 | bits << 32 | bits << 48;
    for (std::uint64_t& values : four_at_a_time) {
      state_ ^= state_ << 13;
      state_ ^= state_ >> 7;
      state_ ^= state_ << 17;
      values = (state_ & 0x807f807f807f807fu) | exponents;
    }
  }

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15u;
};

absl::Status WriteWeights(const ModelConfig& config, const std::filesystem::path& file) {
  const std::vector<NamedWeight> weights = ListWeights(config);
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::size_t offset = 0;
  for (const NamedWeight& weight : weights) {
    nlohmann::json dimensions = {weight.shape.columns};
    if (!IsNorm(weight.kind)) {
      dimensions = {weight.shape.rows, weight.shape.columns};
    }
    const std::size_t end = offset + 2 * weight.values();
    header[weight.name] = {
        {"dtype", "BF16"}, {"shape", dimensions}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();

  std::ofstream output(file, std::ios::binary | std::ios::trunc);
  output.write(reinterpret_cast<const char*>(&length), sizeof(length));
  output.write(text.data(), static_cast<std::streamsize>(text.size()));
  constexpr std::uint64_t kFourOnes = 0x3f803f803f803f80u;
  std::vector<std::uint64_t> piece(1 << 18, kFourOnes);
  RandomValues random;
  for (const NamedWeight& weight : weights) {
    for (std::size_t left = 2 * weight.values(); left > 0;) {
      const std::size_t bytes = std::min(left, piece.size() * sizeof(piece[0]));
      if (IsNorm(weight.kind)) {
        std::fill(piece.begin(), piece.end(), kFourOnes);
      } else {
        random.Fill(weight, piece);
      }
      output.write(reinterpret_cast<const char*>(piece.data()),
                   static_cast<std::streamsize>(bytes));
      left -= bytes;
    }
  }
  output.close();
  return output ? absl::OkStatus()
                : absl::UnavailableError(absl::StrCat("write ", file.string(), ": failed"));
}

}  // namespace

absl::Status WriteShapeModel(const ModelConfig& config, const std::string& directory) {
  if (const auto problem = FindConfigProblem(config); problem.has_value()) {
    return absl::InvalidArgumentError(problem->text);
  }
  // The text side of a model whose own weights are soon replaced.
  RETURN_IF_ERROR(WriteTinyHuggingFace({.name = config.name, .layers = 1}, directory));
  const std::filesystem::path root(directory);
  RETURN_IF_ERROR(RewriteConfig(config, root / "config.json"));
  return WriteWeights(config, root / "model.safetensors");
}

}  // namespace baton
