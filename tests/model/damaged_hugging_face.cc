#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "common/byte_io.h"
#include "common/check.h"
#include "tests/model/damaged_models.h"
#include "tests/model/test_files.h"
#include "tools/tiny_model.h"

namespace baton {
namespace {

using Json = nlohmann::json;

struct Case {
  const char* name;
  const char* item;  // what the error names; empty when a whole file is missing
  std::function<void(std::string&)> damage;
};

// A change to a file that holds one JSON value.
std::function<void(std::string&)> Edit(std::function<void(Json&)> change) {
  return [change = std::move(change)](std::string& file) {
    Json json = Json::parse(file);
    change(json);
    file = json.dump();
  };
}

std::function<void(std::string&)> Set(const char* pointer, Json value) {
  return Edit([pointer, value = std::move(value)](Json& json) {
    json[Json::json_pointer(pointer)] = value;
  });
}

std::function<void(std::string&)> Cut(double share) {
  return [share](std::string& file) {
    file.resize(static_cast<std::size_t>(static_cast<double>(file.size()) * share));
  };
}

std::function<void(std::string&)> Replace(std::string text) {
  return [text = std::move(text)](std::string& file) { file = text; };
}

std::string Nested(int depth) {
  return "{\"a\":" + std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']') + "}";
}

std::vector<Case> ConfigCases() {
  return {
      {"empty", "JSON", Replace("")},
      {"cut", "JSON", Cut(0.5)},
      {"no-json", "JSON", Replace("layers: 2")},
      {"not-utf8", "JSON", Replace("{\"model_type\": \"\xff\"}")},
      {"array", "JSON", Replace("[1, 2]")},
      {"nested-deeply", "JSON", Replace(Nested(100))},
      {"nested-very-deeply", "JSON", Replace(Nested(1000000))},
      {"number-too-large", "JSON", Replace("{\"model_type\": 1e999}")},
      {"key-twice", "key 'model_type'",
       Replace(R"({"model_type": "llama", "model_type": "gpt2"})")},
      {"no-model-type", "key 'model_type'", Replace("{}")},
      {"model-type", "key 'model_type'", Set("/model_type", "mamba")},
      {"architecture", "key 'architectures'",
       Set("/architectures", {"LlamaForSequenceClassification"})},
      {"layers-text", "key 'num_hidden_layers'", Set("/num_hidden_layers", "1")},
      {"layers-0", "key 'num_hidden_layers'", Set("/num_hidden_layers", 0)},
      {"layers-negative", "key 'num_hidden_layers'", Set("/num_hidden_layers", -1)},
      {"layers-fraction", "key 'num_hidden_layers'", Set("/num_hidden_layers", 1.5)},
      {"layers-huge", "key 'num_hidden_layers'", Set("/num_hidden_layers", 0x7fffffff)},
      {"layers-above-int", "key 'num_hidden_layers'",
       Set("/num_hidden_layers", std::uint64_t{1} << 40)},
      {"no-hidden-size", "key 'hidden_size'", Set("/hidden_size", nullptr)},
      {"kv-heads-do-not-divide", "key 'num_key_value_heads'", Set("/num_key_value_heads", 3)},
      {"kv-heads-0", "key 'num_key_value_heads'", Set("/num_key_value_heads", 0)},
      {"head-odd", "key 'head_dim'", Set("/head_dim", 15)},
      {"heads-do-not-divide", "key 'num_attention_heads'", Edit([](Json& json) {
         json.erase("head_dim");
         json["num_attention_heads"] = 5;
       })},
      {"epsilon-0", "key 'rms_norm_eps'", Set("/rms_norm_eps", 0)},
      {"rope-base-negative", "key 'rope_theta'", Set("/rope_theta", -10)},
      {"attention-bias", "key 'attention_bias'", Set("/attention_bias", true)},
      {"mlp-bias", "key 'mlp_bias'", Set("/mlp_bias", true)},
      {"activation", "key 'hidden_act'", Set("/hidden_act", "gelu")},
      {"rope-scaling", "key 'rope_scaling'",
       Set("/rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}})},
      {"rope-parameters", "key 'rope_parameters'",
       Set("/rope_parameters", {{"rope_type", "yarn"}})},
      {"quantized", "key 'quantization_config'", Set("/quantization_config", {{"bits", 4}})},
      {"eos-outside", "key 'eos_token_id'", Set("/eos_token_id", {2, 300})},
  };
}

std::vector<Case> TokenizerCases() {
  return {
      {"cut", "JSON", Cut(0.7)},
      {"no-model", "key 'model'", Set("/model", nullptr)},
      {"word-pieces", "key 'model'", Set("/model/type", "WordPiece")},
      {"normalizer", "key 'normalizer'", Set("/normalizer", {{"type", "NFC"}})},
      {"pre-tokenizer", "key 'pre_tokenizer'", Set("/pre_tokenizer", {{"type", "Metaspace"}})},
      {"no-pre-tokenizer", "key 'pre_tokenizer'", Set("/pre_tokenizer", nullptr)},
      {"prefix-space", "key 'pre_tokenizer'",
       Set("/pre_tokenizer/pretokenizers/1/add_prefix_space", true)},
      {"digits-in-groups", "key 'pre_tokenizer'",
       Set("/pre_tokenizer/pretokenizers/0/individual_digits", false)},
      {"post-processor", "key 'post_processor'",
       Set("/post_processor", {{"type", "TemplateProcessing"}})},
      {"truncation", "key 'truncation'", Set("/truncation", {{"max_length", 5}})},
      {"decoder", "key 'decoder'", Set("/decoder", {{"type", "WordPiece"}})},
      {"dropout", "key 'dropout'", Set("/model/dropout", 0.1)},
      {"byte-fallback", "key 'byte_fallback'", Set("/model/byte_fallback", true)},
      {"ignore-merges", "key 'ignore_merges'", Set("/model/ignore_merges", true)},
      {"no-vocabulary", "key 'vocab'", Set("/model/vocab", nullptr)},
      {"id-outside", "key 'vocab'", Set("/model/vocab/a", 300)},
      {"id-negative", "key 'vocab'", Set("/model/vocab/a", -1)},
      {"id-text", "key 'vocab'", Set("/model/vocab/a", "5")},
      {"id-twice", "key 'vocab'", Set("/model/vocab/a", 5)},
      {"added-id-twice", "key 'added_tokens'", Set("/added_tokens/0/id", 5)},
      {"added-without-content", "key 'added_tokens'", Set("/added_tokens/0/content", nullptr)},
      {"added-strips", "key 'added_tokens'", Set("/added_tokens/0/lstrip", true)},
      {"merges-numbers", "key 'merges'", Set("/model/merges", {1, 2})},
      {"merge-without-space", "key 'merges'", Set("/model/merges/0", "ab")},
      {"merge-unknown", "key 'model'", Set("/model/merges/0", {"zz", "zz"})},
      {"unknown-is-no-token", "key 'unk_token'", Set("/model/unk_token", "<nothing>")},
  };
}

// A safetensors file taken apart.
struct Safetensors {
  Json header;
  std::string data;
};

std::function<void(std::string&)> EditWeights(std::function<void(Safetensors&)> change) {
  return [change = std::move(change)](std::string& file) {
    ByteReader reader(file);
    const std::uint64_t length = reader.Get<std::uint64_t>().value();
    Safetensors weights = {Json::parse(file.substr(8, length)), file.substr(8 + length)};
    change(weights);
    const std::string header = weights.header.dump();
    ByteWriter writer;
    writer.Put(static_cast<std::uint64_t>(header.size()));
    file = writer.bytes() + header + weights.data;
  };
}

constexpr char kQuery[] = "model.layers.0.self_attn.q_proj.weight";
constexpr char kQueryItem[] = "tensor 'model.layers.0.self_attn.q_proj.weight'";

std::function<void(std::string&)> SetInQuery(const char* key, Json value) {
  return EditWeights([key, value = std::move(value)](Safetensors& weights) {
    weights.header[kQuery][key] = value;
  });
}

std::function<void(std::string&)> Rename(const char* name) {
  return EditWeights([name](Safetensors& weights) {
    weights.header[name] = weights.header[kQuery];
    weights.header.erase(kQuery);
  });
}

// The file with another header of the given text, and its data.
std::function<void(std::string&)> Header(std::string text) {
  return [text = std::move(text)](std::string& file) {
    ByteReader reader(file);
    const std::uint64_t length = reader.Get<std::uint64_t>().value();
    ByteWriter writer;
    writer.Put(static_cast<std::uint64_t>(text.size()));
    file = writer.bytes() + text + file.substr(8 + length);
  };
}

std::function<void(std::string&)> HeaderLength(std::uint64_t length) {
  return [length](std::string& file) {
    ByteWriter writer;
    writer.Put(length);
    file.replace(0, 8, writer.bytes());
  };
}

std::vector<Case> WeightCases() {
  constexpr std::uint64_t kBig = std::uint64_t{1} << 40;
  return {
      {"empty", "header", Replace("")},
      {"length-cut", "header", Replace("\1\2\3")},
      {"header-length-0", "header", HeaderLength(0)},
      {"header-longer-than-file", "header", HeaderLength(50'000'000)},
      {"header-longer-than-allowed", "header", HeaderLength(100'000'001)},
      {"header-length-overflows", "header", HeaderLength(~std::uint64_t{0})},
      {"header-one-too-long", "JSON", [](std::string& file) { ++file[0]; }},
      {"header-no-object", "header", Header("[]")},
      {"header-no-json", "JSON", Header("{oops}")},
      {"header-nested-very-deeply", "JSON", Header(Nested(1000000))},
      {"tensor-twice", "key 'a'", Header(R"({"a": 1, "a": 2})")},
      {"entry-no-object", "tensor 'a'", Header(R"({"a": 1})")},
      {"metadata-number", "key '__metadata__'", EditWeights([](Safetensors& weights) {
         weights.header["__metadata__"] = {{"a", 1}};
       })},
      {"cut-in-header", "header", Cut(0.02)},
      {"cut-in-data", "tensor", Cut(0.5)},
      {"last-byte-missing", "tensor", [](std::string& file) { file.pop_back(); }},
      {"byte-too-many", "data", [](std::string& file) { file.push_back('\0'); }},
      {"dtype-unknown", kQueryItem, SetInQuery("dtype", "F7")},
      {"dtype-f64", kQueryItem, SetInQuery("dtype", "F64")},
      {"dtype-missing", kQueryItem, SetInQuery("dtype", nullptr)},
      {"dtype-of-other-size", kQueryItem, SetInQuery("dtype", "BF16")},
      {"entry-key-unknown", kQueryItem, SetInQuery("stride", 1)},
      {"shape-missing", kQueryItem, SetInQuery("shape", nullptr)},
      {"shape-negative", kQueryItem, SetInQuery("shape", {-32, -32})},
      {"shape-fraction", kQueryItem, SetInQuery("shape", {32.5, 32})},
      {"shape-larger-than-range", kQueryItem, SetInQuery("shape", {64, 32})},  // B64
      {"shape-of-exabytes", kQueryItem, SetInQuery("shape", {kBig, 1024})},
      {"shape-overflows", kQueryItem, SetInQuery("shape", {kBig, kBig})},
      {"shape-of-other-rank", kQueryItem, SetInQuery("shape", {1024})},
      {"shape-of-many-ranks", kQueryItem, SetInQuery("shape", Json(std::vector<int>(1000, 1)))},
      {"range-missing", kQueryItem, SetInQuery("data_offsets", nullptr)},
      {"range-of-three", kQueryItem, SetInQuery("data_offsets", {0, 1, 2})},
      {"range-backwards", kQueryItem, SetInQuery("data_offsets", {4096, 0})},
      {"range-beyond-the-file", kQueryItem, SetInQuery("data_offsets", {kBig, kBig + 4096})},
      {"range-overflows", kQueryItem,
       SetInQuery("data_offsets", {~std::uint64_t{0} - 4095, ~std::uint64_t{0}})},
      {"range-negative", kQueryItem, SetInQuery("data_offsets", {-4096, 0})},
      {"range-overlaps", "overlaps", SetInQuery("data_offsets", {4, 4100})},
      {"gap", "a gap of", EditWeights([](Safetensors& weights) {
         for (Json& entry : weights.header) {
           if (entry.contains("data_offsets")) {
             entry["data_offsets"] = {entry["data_offsets"][0].get<int>() + 8,
                                      entry["data_offsets"][1].get<int>() + 8};
           }
         }
         weights.data.insert(0, 8, '\0');
       })},
      {"tensor-missing", "tensor", EditWeights([](Safetensors& weights) {
         const std::size_t begin = weights.header["model.norm.weight"]["data_offsets"][0];
         weights.header.erase("model.norm.weight");
         weights.data.resize(begin);
       })},
      {"bias", "tensor 'model.layers.0.self_attn.q_proj.bias'",
       Rename("model.layers.0.self_attn.q_proj.bias")},
      {"layer-too-many", "tensor 'model.layers.9.self_attn.q_proj.weight'",
       Rename("model.layers.9.self_attn.q_proj.weight")},
  };
}

std::vector<Case> IndexCases() {
  const auto shard_of_norm = [](Json value) {
    return Edit([value = std::move(value)](Json& json) {
      json["weight_map"]["model.norm.weight"] = value;
    });
  };
  return {
      {"cut", "JSON", Cut(0.5)},
      {"no-map", "key 'weight_map'", Replace("{}")},
      {"leads-outside", "key 'model.norm.weight'", shard_of_norm("../model.safetensors")},
      {"leads-to-root", "key 'model.norm.weight'", shard_of_norm("/etc/passwd")},
      {"leads-to-the-folder", "key 'model.norm.weight'", shard_of_norm("..")},
      {"shard-empty", "key 'model.norm.weight'", shard_of_norm("")},
      {"shard-number", "key 'model.norm.weight'", shard_of_norm(1)},
      {"tensor-nowhere", "key 'lm_head.weight'", Edit([](Json& json) {
         json["weight_map"]["lm_head.weight"] = json["weight_map"]["model.norm.weight"];
       })},
  };
}

}  // namespace

std::vector<DamagedModel> WriteDamagedHuggingFace(const std::string& directory) {
  TinyModelOptions options = {.layers = 1,
                              .hidden = 32,
                              .feed_forward = 32,
                              .heads = 2,
                              .kv_heads = 1,
                              .head_dim = 16,
                              .vocabulary = 300};
  const std::string whole = directory + "/sound";
  BATON_CHECK(WriteTinyHuggingFace(options, whole).ok());
  options.shards = 2;
  const std::string sharded = directory + "/sound-sharded";
  BATON_CHECK(WriteTinyHuggingFace(options, sharded).ok());

  std::vector<DamagedModel> models;
  // A copy of `sound` in which `file` is the one to change; returns its path.
  const auto add = [&](const std::string& name, const std::string& sound, const std::string& file,
                       const std::string& item) {
    const std::string path = directory + "/hf-" + name;
    std::filesystem::copy(sound, path);
    models.push_back({"hf-" + name, path, path + "/" + file, item});
    return path + "/" + file;
  };
  const auto add_all = [&](const std::string& prefix, const std::string& sound,
                           const std::string& file, const std::vector<Case>& cases) {
    for (const Case& damaged : cases) {
      const std::string path = add(prefix + "-" + damaged.name, sound, file, damaged.item);
      std::string bytes = ReadFile(path);
      damaged.damage(bytes);
      WriteFile(path, bytes);
    }
  };
  add_all("config", whole, "config.json", ConfigCases());
  add_all("tokenizer", whole, "tokenizer.json", TokenizerCases());
  add_all("tokenizer-config", whole, "tokenizer_config.json",
          {{"bos-is-no-token", "key 'bos_token'", Set("/bos_token", "<nothing>")},
           {"adds-bos", "key 'add_bos_token'", Set("/add_bos_token", true)},
           {"template-number", "key 'chat_template'", Set("/chat_template", 5)},
           {"cut", "JSON", Cut(0.5)}});
  add_all("weights", whole, "model.safetensors", WeightCases());
  add_all("index", sharded, "model.safetensors.index.json", IndexCases());
  for (const char* file : {"config.json", "tokenizer.json"}) {
    std::filesystem::remove(add(std::string("without-") + file, whole, file, ""));
  }
  std::filesystem::remove(add("without-a-shard", sharded, "model-00002-of-00002.safetensors", ""));
  const std::string loop = add("weights-symlink-loop", whole, "model.safetensors", "");
  std::filesystem::remove(loop);
  std::filesystem::create_symlink("model.safetensors", loop);
  const std::string pickled = add("pickle", whole, "pytorch_model.bin", "pickle");
  WriteFile(pickled, "\x80\x02");
  std::filesystem::remove(models.back().path + "/model.safetensors");
  return models;
}

}  // namespace baton
