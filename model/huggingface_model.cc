// A llama model in a Hugging Face directory: which files there are and how they fit together.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/huggingface_config.h"
#include "model/huggingface_tokenizer.h"
#include "model/json_reader.h"
#include "model/model_parts.h"
#include "model/safetensors_file.h"

namespace baton {
namespace {

constexpr char kWeights[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

std::string Join(const std::string& directory, const std::string& name) {
  return (std::filesystem::path(directory) / name).string();
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

// The last part of the directory's name, for a config that gives the model none.
std::string NameOfDirectory(const std::string& directory) {
  std::filesystem::path path(directory);
  if (!path.has_filename()) {
    path = path.parent_path();
  }
  return path.filename().string();
}

absl::Status AddWeightFile(const std::string& path, ModelParts& parts) {
  ASSIGN_OR_RETURN(const auto weights, SafetensorsFile::Open(path));
  parts.tensors.insert(parts.tensors.end(), weights->tensors().begin(), weights->tensors().end());
  parts.files.push_back(std::move(*weights).TakeFile());
  return absl::OkStatus();
}

// Where the index says each tensor is. A shard is a file beside the index: a name that leads
// elsewhere is refused.
absl::StatusOr<std::map<std::string, std::string>> ReadWeightMap(const JsonDocument& index) {
  const JsonReader reader(index);
  static constexpr char kKey[] = "weight_map";
  const nlohmann::json* weight_map = reader.Find(kKey);
  if (weight_map == nullptr || !weight_map->is_object()) {
    return DamagedFile(reader.Place(kKey), "no object that maps tensors to files");
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, shard] : weight_map->items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    const bool plain = !name.empty() && name != "." && name != ".." &&
                       name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
    if (!plain) {
      return DamagedFile(reader.Place(tensor),
                         absl::StrCat(Printable(shard.dump(-1, ' ', true)),
                                      " is not the name of a file beside the index"));
    }
    shard_of[tensor] = name;
  }
  return shard_of;
}

absl::Status AddShards(const std::string& directory, ModelParts& parts) {
  ASSIGN_OR_RETURN(const MappedFile index_file, MappedFile::Open(Join(directory, kIndex)));
  ASSIGN_OR_RETURN(const JsonDocument index,
                   JsonDocument::Parse(index_file.path(), index_file.bytes()));
  ASSIGN_OR_RETURN(const auto shard_of, ReadWeightMap(index));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) {
    shards.insert(shard);
  }
  for (const std::string& shard : shards) {
    RETURN_IF_ERROR(AddWeightFile(Join(directory, shard), parts));
  }
  absl::flat_hash_map<std::string, std::string> found_in;  // path by tensor
  for (const StoredTensor& tensor : parts.tensors) {
    const auto listed = shard_of.find(tensor.name);
    if (listed == shard_of.end() || Join(directory, listed->second) != tensor.path) {
      return DamagedFile(tensor.Place(), absl::StrCat("the index ", index_file.path(),
                                                      " does not say that it is here"));
    }
    found_in.emplace(tensor.name, tensor.path);
  }
  for (const auto& [tensor, shard] : shard_of) {
    if (!found_in.contains(tensor)) {
      return DamagedFile(index.Place(tensor), absl::StrCat("the tensor is not in ", shard));
    }
  }
  return absl::OkStatus();
}

absl::Status AddWeights(const std::string& directory, ModelParts& parts) {
  if (Exists(Join(directory, kWeights))) {
    return AddWeightFile(Join(directory, kWeights), parts);
  }
  if (Exists(Join(directory, kIndex))) {
    return AddShards(directory, parts);
  }
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (Exists(Join(directory, pickle))) {
      return absl::UnimplementedError(
          absl::StrCat(Join(directory, pickle),
                       ": weights in Python's pickle format run code when they are opened; convert "
                       "them to safetensors"));
    }
  }
  return absl::NotFoundError(absl::StrCat(directory, ": neither ", kWeights, " nor ", kIndex));
}

// Some old files hold a table that every reader computes by itself.
bool IsIgnored(const std::string& name) {
  return name.starts_with("model.layers.") && name.ends_with(".self_attn.rotary_emb.inv_freq");
}

absl::Status CollectWeights(const std::string& directory, ModelParts& parts) {
  parts.weights = WeightTable(parts.config);
  for (const StoredTensor& tensor : parts.tensors) {
    if (IsIgnored(tensor.name)) {
      continue;
    }
    const auto name = ParseTensorName(NamingScheme::kHuggingFace, tensor.name);
    if (!name.has_value()) {
      return UnsupportedFile(tensor.Place(), "no weight of the llama models that Baton knows");
    }
    RETURN_IF_ERROR(parts.weights.Add(*name, tensor));
  }
  if (const auto missing = parts.weights.FindMissing(); missing.has_value()) {
    return DamagedFile(
        {parts.files.empty() ? directory : parts.files.back().path(),
         absl::StrCat("tensor '", TensorName(NamingScheme::kHuggingFace, *missing), "'"), 0},
        "the tensor is missing");
  }
  return absl::OkStatus();
}

// A small JSON file that may be absent.
struct OptionalDocument {
  std::optional<MappedFile> file;  // owns the text of `document`
  std::optional<JsonDocument> document;
};

absl::StatusOr<OptionalDocument> OpenOptional(const std::string& path) {
  OptionalDocument result;
  if (Exists(path)) {
    ASSIGN_OR_RETURN(result.file, MappedFile::Open(path));
    ASSIGN_OR_RETURN(result.document, JsonDocument::Parse(path, result.file->bytes()));
  }
  return result;
}

// The id of the token that tokenizer_config.json calls `key`: a string, or an object with the
// string in `content`.
absl::StatusOr<std::optional<TokenId>> FindNamedToken(const JsonDocument& document,
                                                      const std::string& key,
                                                      const TokenizerData& data) {
  const JsonReader reader(document);
  const nlohmann::json* value = reader.Find(key);
  if (value != nullptr && value->is_object()) {
    const auto content = value->find("content");
    value = content == value->end() ? value : &*content;
  }
  if (value == nullptr) {
    return std::nullopt;
  }
  for (std::size_t id = 0; value->is_string() && id < data.tokens.size(); ++id) {
    if (data.tokens[id].kind != TokenKind::kUnused &&
        data.tokens[id].text == value->get<std::string>()) {
      return TokenId(static_cast<std::uint32_t>(id));
    }
  }
  return DamagedFile(reader.Place(key), "is no token of tokenizer.json");
}

// The ids under `key`: one number or a list of them.
absl::StatusOr<std::vector<TokenId>> ReadTokenIds(const JsonDocument& document,
                                                  const std::string& key,
                                                  int vocabulary) {
  const JsonReader reader(document);
  std::vector<TokenId> ids;
  const nlohmann::json* value = reader.Find(key);
  if (value == nullptr) {
    return ids;
  }
  for (const nlohmann::json& id : value->is_array() ? *value : nlohmann::json::array({*value})) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocabulary)) {
      return DamagedFile(reader.Place(key),
                         absl::StrCat(Printable(id.dump(-1, ' ', true)),
                                      " is no id of a vocabulary of ", vocabulary));
    }
    ids.emplace_back(id.get<std::uint32_t>());
  }
  return ids;
}

// bos and the ends of a sequence. The tokenizer's own word counts most, then
// generation_config.json, then config.json; every end that one of them names is one.
absl::Status ReadEnds(const std::string& directory,
                      const JsonDocument& config,
                      const OptionalDocument& tokenizer_config,
                      ModelParts& parts) {
  TokenizerData& data = parts.tokenizer;
  std::optional<TokenId> bos;
  std::vector<TokenId> ends;
  if (tokenizer_config.document.has_value()) {
    ASSIGN_OR_RETURN(bos, FindNamedToken(*tokenizer_config.document, "bos_token", data));
    ASSIGN_OR_RETURN(const auto eos, FindNamedToken(*tokenizer_config.document, "eos_token", data));
    if (eos.has_value()) {
      ends.push_back(*eos);
    }
  }
  ASSIGN_OR_RETURN(const OptionalDocument generation,
                   OpenOptional(Join(directory, "generation_config.json")));
  for (const JsonDocument* document :
       {generation.document.has_value() ? &*generation.document : nullptr, &config}) {
    if (document == nullptr) {
      continue;
    }
    ASSIGN_OR_RETURN(const auto first,
                     ReadTokenIds(*document, "bos_token_id", parts.config.vocabulary));
    ASSIGN_OR_RETURN(const auto last,
                     ReadTokenIds(*document, "eos_token_id", parts.config.vocabulary));
    if (!bos.has_value() && !first.empty()) {
      bos = first.front();
    }
    ends.insert(ends.end(), last.begin(), last.end());
  }
  if (!bos.has_value() || ends.empty()) {
    return DamagedFile(config.Place(bos.has_value() ? "eos_token_id" : "bos_token_id"),
                       "no file of the model names this token");
  }
  data.bos = *bos;
  data.eos = ends.front();
  data.more_ends.assign(ends.begin() + 1, ends.end());
  return absl::OkStatus();
}

absl::Status ReadTemplate(const std::string& directory,
                          const OptionalDocument& tokenizer_config,
                          ModelParts& parts) {
  if (const std::string path = Join(directory, "chat_template.jinja"); Exists(path)) {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    parts.chat_template = file.bytes();
    return absl::OkStatus();
  }
  if (!tokenizer_config.document.has_value()) {
    return absl::OkStatus();
  }
  const JsonReader reader(*tokenizer_config.document);
  const nlohmann::json* value = reader.Find("chat_template");
  if (value != nullptr && value->is_array()) {
    // Several templates by name; the one for plain chat is called "default".
    for (const nlohmann::json& entry : *value) {
      const JsonReader named(*tokenizer_config.document, entry);
      ASSIGN_OR_RETURN(const auto name, named.String("name"));
      ASSIGN_OR_RETURN(const auto text, named.String("template"));
      if (name == "default") {
        parts.chat_template = text.value_or("");
      }
    }
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const auto text, reader.String("chat_template"));
  parts.chat_template = text.value_or("");
  return absl::OkStatus();
}

absl::Status RefuseAddedBos(const OptionalDocument& tokenizer_config) {
  if (!tokenizer_config.document.has_value()) {
    return absl::OkStatus();
  }
  const JsonReader reader(*tokenizer_config.document);
  for (const char* key : {"add_bos_token", "add_eos_token", "add_prefix_space"}) {
    ASSIGN_OR_RETURN(const auto set, reader.Bool(key));
    if (set.value_or(false)) {
      return UnsupportedFile(reader.Place(key), "is true");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelParts> LoadHuggingFace(const std::string& directory) {
  ASSIGN_OR_RETURN(MappedFile config_file, MappedFile::Open(Join(directory, "config.json")));
  ASSIGN_OR_RETURN(const JsonDocument config,
                   JsonDocument::Parse(config_file.path(), config_file.bytes()));
  ModelParts parts;
  parts.rotary_order = RotaryOrder::kHalfSplit;
  ASSIGN_OR_RETURN(parts.config, ReadHuggingFaceConfig(config));
  if (parts.config.name.empty()) {
    parts.config.name = NameOfDirectory(directory);
  }
  ASSIGN_OR_RETURN(const MappedFile tokenizer_file,
                   MappedFile::Open(Join(directory, "tokenizer.json")));
  ASSIGN_OR_RETURN(const JsonDocument tokenizer,
                   JsonDocument::Parse(tokenizer_file.path(), tokenizer_file.bytes()));
  ASSIGN_OR_RETURN(parts.tokenizer, ReadHuggingFaceTokenizer(tokenizer, parts.config.vocabulary));
  parts.tokenizer_place = tokenizer.Place("model");
  ASSIGN_OR_RETURN(const OptionalDocument tokenizer_config,
                   OpenOptional(Join(directory, "tokenizer_config.json")));
  RETURN_IF_ERROR(RefuseAddedBos(tokenizer_config));
  RETURN_IF_ERROR(ReadEnds(directory, config, tokenizer_config, parts));
  RETURN_IF_ERROR(ReadTemplate(directory, tokenizer_config, parts));
  RETURN_IF_ERROR(AddWeights(directory, parts));
  RETURN_IF_ERROR(CollectWeights(directory, parts));
  parts.files.push_back(std::move(config_file));
  return parts;
}

}  // namespace baton
