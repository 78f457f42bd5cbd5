#include "tools/tiny_model.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/byte_io.h"
#include "common/status_macros.h"
#include "model/model_config.h"
#include "model/weight_table.h"
#include "tools/gguf_writer.h"
#include "tools/random_weights.h"
#include "tools/tiny_tokenizer.h"

namespace baton {
namespace {

ModelConfig ConfigOf(const TinyModelOptions& options) {
  return {.name = options.name,
          .layers = options.layers,
          .hidden = options.hidden,
          .feed_forward = options.feed_forward,
          .heads = options.heads,
          .kv_heads = options.kv_heads,
          .head_dim = options.head_dim,
          .vocabulary = options.vocabulary,
          .context_tokens = options.context_tokens,
          .rms_epsilon = static_cast<float>(1e-5),
          .rope_base = static_cast<float>(options.rope_base),
          .tied_head = options.tied_head};
}

absl::Status CheckOptions(const TinyModelOptions& options) {
  if (const auto problem = FindConfigProblem(ConfigOf(options)); problem.has_value()) {
    return absl::InvalidArgumentError(problem->text);
  }
  if (options.vocabulary < kSmallestTinyVocabulary || options.vocabulary > kLargestTinyVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("a vocabulary of ", options.vocabulary,
                                                   ", not in ", kSmallestTinyVocabulary, " to ",
                                                   kLargestTinyVocabulary));
  }
  const auto block = static_cast<int>(FormatOf(options.type).values);
  for (const int columns :
       {options.hidden, options.feed_forward, options.heads * options.head_dim}) {
    if (columns % block != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a width of ", columns, ", not a multiple of the ", block,
                       " values in a block of ", std::string(NameOf(options.type))));
    }
  }
  if (options.shards < 1) {
    return absl::InvalidArgumentError("at least one shard is needed");
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream output(path, std::ios::binary | std::ios::trunc);
  output.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  output.close();
  if (!output) {
    return absl::UnavailableError(absl::StrCat("write ", path, ": failed"));
  }
  return absl::OkStatus();
}

// All weights of the model, in the order in which both formats write them.
std::vector<WeightName> ListWeights(const ModelConfig& config) {
  std::vector<WeightName> names = {{.kind = WeightKind::kTokenEmbedding}};
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const WeightKind kind : kLayerWeights) {
      names.push_back({.kind = kind, .layer = LayerIndex(static_cast<std::uint32_t>(layer))});
    }
  }
  names.push_back({.kind = WeightKind::kOutputNorm});
  if (!config.tied_head) {
    names.push_back({.kind = WeightKind::kHead});
  }
  return names;
}

std::vector<std::uint64_t> Dimensions(const WeightName& name, const WeightShape& shape) {
  const auto columns = static_cast<std::uint64_t>(shape.columns);
  if (IsNorm(name.kind)) {
    return {columns};
  }
  return {static_cast<std::uint64_t>(shape.rows), columns};
}

// The rows as a GGUF llama file has them: those of query and key heads in adjacent rotary pairs.
std::string GgufBytes(const ModelConfig& config,
                      const WeightName& name,
                      const RandomWeight& weight) {
  const bool rotated = name.kind == WeightKind::kQuery || name.kind == WeightKind::kKey;
  const auto head_dim = static_cast<std::size_t>(config.head_dim);
  std::string bytes;
  for (std::size_t row = 0; row < weight.rows.size(); ++row) {
    const std::size_t in_head = row % head_dim;
    const std::size_t split = row - in_head + in_head % 2 * (head_dim / 2) + in_head / 2;
    bytes.append(weight.rows[rotated ? split : row]);
  }
  return bytes;
}

void PutTokenizer(const TokenizerData& data, GgufWriter& writer) {
  constexpr std::int32_t kNormalType = 1;
  constexpr std::int32_t kControlType = 3;
  std::vector<std::string> texts;
  std::vector<std::int32_t> types;
  for (const TokenEntry& token : data.tokens) {
    texts.push_back(token.text);
    types.push_back(token.kind == TokenKind::kControl ? kControlType : kNormalType);
  }
  std::vector<std::string> merges;
  for (const auto& [left, right] : data.merges) {
    merges.push_back(absl::StrCat(left, " ", right));
  }
  writer.PutString("tokenizer.ggml.model", "gpt2");
  writer.PutString("tokenizer.ggml.pre", "smollm");
  writer.PutStrings("tokenizer.ggml.tokens", texts);
  writer.PutIntegers("tokenizer.ggml.token_type", types);
  writer.PutStrings("tokenizer.ggml.merges", merges);
  writer.PutCount("tokenizer.ggml.bos_token_id", data.bos.value());
  writer.PutCount("tokenizer.ggml.eos_token_id", data.eos.value());
  writer.PutBool("tokenizer.ggml.add_bos_token", false);
  writer.PutString("tokenizer.chat_template", kTinyChatTemplate);
}

void PutConfig(const ModelConfig& config, GgufWriter& writer) {
  const auto count = [&](const char* key, int value) {
    writer.PutCount(key, static_cast<std::uint32_t>(value));
  };
  writer.PutString("general.architecture", "llama");
  writer.PutString("general.name", config.name);
  count("llama.block_count", config.layers);
  count("llama.context_length", config.context_tokens);
  count("llama.embedding_length", config.hidden);
  count("llama.feed_forward_length", config.feed_forward);
  count("llama.attention.head_count", config.heads);
  count("llama.attention.head_count_kv", config.kv_heads);
  count("llama.attention.key_length", config.head_dim);
  count("llama.attention.value_length", config.head_dim);
  count("llama.rope.dimension_count", config.head_dim);
  count("llama.vocab_size", config.vocabulary);
  writer.PutFloat("llama.attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_epsilon));
  writer.PutFloat("llama.rope.freq_base", static_cast<float>(config.rope_base));
}

// The weight as safetensors has it: bf16 as it is, everything else as F32.
std::string HuggingFaceBytes(const RandomWeight& weight) {
  ByteWriter writer;
  for (const std::string& row : weight.rows) {
    if (weight.type == ElementType::kBF16) {
      writer.PutBytes(row);
      continue;
    }
    std::vector<float> values(static_cast<std::size_t>(weight.shape.columns));
    Dequantize(weight.type, row, values);
    for (const float value : values) {
      writer.Put(std::bit_cast<std::uint32_t>(value));
    }
  }
  return std::move(writer).Take();
}

std::string ComposeSafetensors(const TinyModelOptions& options, std::span<const WeightName> names) {
  const ModelConfig config = ConfigOf(options);
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const WeightName& name : names) {
    const RandomWeight weight = MakeRandomWeight(config, name, options.type, options.seed);
    const std::size_t begin = data.size();
    data.append(HuggingFaceBytes(weight));
    header[TensorName(NamingScheme::kHuggingFace, name)] = {
        {"dtype", weight.type == ElementType::kBF16 ? "BF16" : "F32"},
        {"shape", Dimensions(name, weight.shape)},
        {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  ByteWriter writer;
  writer.Put(static_cast<std::uint64_t>(text.size()));
  writer.PutBytes(text);
  writer.PutBytes(data);
  return std::move(writer).Take();
}

absl::Status WriteShards(const TinyModelOptions& options, const std::filesystem::path& directory) {
  const std::vector<WeightName> names = ListWeights(ConfigOf(options));
  if (options.shards == 1) {
    return WriteFile(directory / "model.safetensors", ComposeSafetensors(options, names));
  }
  const auto shards = static_cast<std::size_t>(options.shards);
  const std::size_t per_shard = (names.size() + shards - 1) / shards;
  nlohmann::json weight_map;
  for (std::size_t shard = 0; shard * per_shard < names.size(); ++shard) {
    const std::size_t begin = shard * per_shard;
    const std::size_t count = std::min(per_shard, names.size() - begin);
    const auto part = std::span(names).subspan(begin, count);
    const std::string file = absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1,
                                             (names.size() + per_shard - 1) / per_shard);
    for (const WeightName& name : part) {
      weight_map[TensorName(NamingScheme::kHuggingFace, name)] = file;
    }
    RETURN_IF_ERROR(WriteFile(directory / file, ComposeSafetensors(options, part)));
  }
  const nlohmann::json index = {{"metadata", nlohmann::json::object()}, {"weight_map", weight_map}};
  return WriteFile(directory / "model.safetensors.index.json", index.dump(2));
}

nlohmann::json ConfigJson(const TinyModelOptions& options) {
  const ModelConfig config = ConfigOf(options);
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"_name_or_path", config.name},
          {"num_hidden_layers", config.layers},
          {"hidden_size", config.hidden},
          {"intermediate_size", config.feed_forward},
          {"num_attention_heads", config.heads},
          {"num_key_value_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocabulary},
          {"max_position_embeddings", config.context_tokens},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", options.rope_base},
          {"rope_scaling", nullptr},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", config.tied_head},
          {"torch_dtype", options.type == ElementType::kBF16 ? "bfloat16" : "float32"},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

nlohmann::json TokenizerJson(const TokenizerData& data) {
  nlohmann::json vocabulary = nlohmann::json::object();
  nlohmann::json added = nlohmann::json::array();
  for (std::size_t id = 0; id < data.tokens.size(); ++id) {
    vocabulary[data.tokens[id].text] = id;
    if (data.tokens[id].kind == TokenKind::kControl) {
      added.push_back({{"id", id},
                       {"content", data.tokens[id].text},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
  }
  nlohmann::json merges = nlohmann::json::array();
  for (const auto& [left, right] : data.merges) {
    merges.push_back(absl::StrCat(left, " ", right));
  }
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level}}}},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocabulary},
            {"merges", merges}}}};
}

}  // namespace

absl::Status WriteTinyGguf(const TinyModelOptions& options, const std::string& path) {
  RETURN_IF_ERROR(CheckOptions(options));
  const ModelConfig config = ConfigOf(options);
  GgufWriter writer;
  PutConfig(config, writer);
  PutTokenizer(MakeTinyTokenizer(options.vocabulary), writer);
  for (const WeightName& name : ListWeights(config)) {
    const RandomWeight weight = MakeRandomWeight(config, name, options.type, options.seed);
    writer.AddTensor({.name = TensorName(NamingScheme::kGguf, name),
                      .dimensions = Dimensions(name, weight.shape),
                      .type = weight.type,
                      .bytes = GgufBytes(config, name, weight)});
  }
  return WriteFile(path, writer.Compose());
}

absl::Status WriteTinyHuggingFace(const TinyModelOptions& options, const std::string& directory) {
  RETURN_IF_ERROR(CheckOptions(options));
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("make directory ", directory));
  }
  const std::filesystem::path root(directory);
  const nlohmann::json tokenizer_config = {{"add_bos_token", false},
                                           {"bos_token", "<|im_start|>"},
                                           {"eos_token", "<|im_end|>"},
                                           {"chat_template", std::string(kTinyChatTemplate)},
                                           {"model_max_length", options.context_tokens}};
  RETURN_IF_ERROR(WriteFile(root / "config.json", ConfigJson(options).dump(2)));
  RETURN_IF_ERROR(WriteFile(root / "tokenizer.json",
                            TokenizerJson(MakeTinyTokenizer(options.vocabulary)).dump(1)));
  RETURN_IF_ERROR(WriteFile(root / "tokenizer_config.json", tokenizer_config.dump(2)));
  return WriteShards(options, root);
}

}  // namespace baton
