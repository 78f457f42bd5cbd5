// A llama model in one GGUF file: which keys and tensors mean what.
#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "model/gguf_file.h"
#include "model/gguf_tokenizer.h"
#include "model/model_parts.h"

namespace baton {
namespace {

// Keys under "llama." that ReadConfig reads or that change nothing. Any other one may change the
// arithmetic.
constexpr std::array<std::string_view, 19> kKnownKeys = {
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.rope.scale_linear",
    "llama.rope.scaling.finetuned",
    "llama.vocab_size",
    "llama.expert_count",
    "llama.expert_used_count",
    "llama.tensor_data_layout",
};

// The key that a number of the config comes from.
std::string KeyOf(ConfigField field) {
  switch (field) {
    case ConfigField::kLayers:
      return "llama.block_count";
    case ConfigField::kHidden:
      return "llama.embedding_length";
    case ConfigField::kFeedForward:
      return "llama.feed_forward_length";
    case ConfigField::kHeads:
      return "llama.attention.head_count";
    case ConfigField::kKvHeads:
      return "llama.attention.head_count_kv";
    case ConfigField::kHeadDim:
      return "llama.attention.key_length";
    case ConfigField::kVocabulary:
      return "tokenizer.ggml.tokens";
    case ConfigField::kContextTokens:
      return "llama.context_length";
    case ConfigField::kRmsEpsilon:
      return "llama.attention.layer_norm_rms_epsilon";
    case ConfigField::kRopeBase:
      return "llama.rope.freq_base";
  }
  CheckFailed(__FILE__, __LINE__, "a ConfigField that is not in the enumeration");
}

absl::Status RefuseUnknown(const GgufFile& gguf) {
  for (const auto& [key, value] : gguf.metadata()) {
    if (key.starts_with("llama.") &&
        std::find(kKnownKeys.begin(), kKnownKeys.end(), key) == kKnownKeys.end()) {
      return UnsupportedFile(gguf.Place(key), "a setting that Baton does not know");
    }
  }
  return absl::OkStatus();
}

absl::Status RefuseRopeScaling(const GgufFile& gguf) {
  static constexpr char kType[] = "llama.rope.scaling.type";
  if (gguf.Has(kType)) {
    ASSIGN_OR_RETURN(const std::string type, gguf.ReadString(kType));
    if (type != "none") {
      return UnsupportedFile(gguf.Place(kType),
                             absl::StrCat("rotary scaling '", Printable(type), "'"));
    }
  }
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    if (gguf.Has(key)) {
      ASSIGN_OR_RETURN(const double factor, gguf.ReadFloat(key));
      if (factor != 1 && factor != 0) {
        return UnsupportedFile(gguf.Place(key), absl::StrCat("rotary scaling by ", factor));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RefuseExperts(const GgufFile& gguf) {
  static constexpr char kKey[] = "llama.expert_count";
  if (gguf.Has(kKey)) {
    ASSIGN_OR_RETURN(const int experts, gguf.ReadCount(kKey));
    if (experts != 0) {
      return UnsupportedFile(gguf.Place(kKey), absl::StrCat("a mixture of ", experts, " experts"));
    }
  }
  return absl::OkStatus();
}

// The head dimension: given as such, or the embedding's width shared among the heads.
absl::StatusOr<int> ReadHeadDim(const GgufFile& gguf, const ModelConfig& config) {
  static constexpr char kKeyLength[] = "llama.attention.key_length";
  static constexpr char kValueLength[] = "llama.attention.value_length";
  static constexpr char kRotated[] = "llama.rope.dimension_count";
  int head_dim = 0;
  if (gguf.Has(kKeyLength)) {
    ASSIGN_OR_RETURN(head_dim, gguf.ReadCount(kKeyLength));
  } else {
    if (config.heads < 1 || config.hidden % config.heads != 0) {
      return DamagedFile(
          gguf.Place("llama.attention.head_count"),
          absl::StrCat(config.heads, " heads do not divide an embedding of width ", config.hidden));
    }
    head_dim = config.hidden / config.heads;
  }
  for (const char* key : {kValueLength, kRotated}) {
    if (gguf.Has(key)) {
      ASSIGN_OR_RETURN(const int length, gguf.ReadCount(key));
      if (length != head_dim) {
        return UnsupportedFile(gguf.Place(key), absl::StrCat(length, ", not the ", head_dim,
                                                             " dimensions of a key head"));
      }
    }
  }
  return head_dim;
}

absl::StatusOr<ModelConfig> ReadConfig(const GgufFile& gguf) {
  ModelConfig config;
  if (gguf.Has("general.name")) {
    ASSIGN_OR_RETURN(config.name, gguf.ReadString("general.name"));
  }
  struct Count {
    const char* key;
    int* value;
  };
  const std::array counts = {
      Count{"llama.block_count", &config.layers},
      Count{"llama.context_length", &config.context_tokens},
      Count{"llama.embedding_length", &config.hidden},
      Count{"llama.feed_forward_length", &config.feed_forward},
      Count{"llama.attention.head_count", &config.heads},
  };
  for (const Count& count : counts) {
    ASSIGN_OR_RETURN(*count.value, gguf.ReadCount(count.key));
  }
  config.kv_heads = config.heads;
  if (gguf.Has("llama.attention.head_count_kv")) {
    ASSIGN_OR_RETURN(config.kv_heads, gguf.ReadCount("llama.attention.head_count_kv"));
  }
  ASSIGN_OR_RETURN(config.head_dim, ReadHeadDim(gguf, config));
  ASSIGN_OR_RETURN(config.rms_epsilon, gguf.ReadFloat("llama.attention.layer_norm_rms_epsilon"));
  config.rope_base = 10000;
  if (gguf.Has("llama.rope.freq_base")) {
    ASSIGN_OR_RETURN(config.rope_base, gguf.ReadFloat("llama.rope.freq_base"));
  }
  // Files may hold float64; the arithmetic is float32.
  config.rms_epsilon = static_cast<float>(config.rms_epsilon);
  config.rope_base = static_cast<float>(config.rope_base);
  return config;
}

// The vocabulary is the number of tokens; a key that says otherwise is a damaged file.
absl::Status CheckVocabulary(const GgufFile& gguf, int vocabulary) {
  static constexpr char kKey[] = "llama.vocab_size";
  if (gguf.Has(kKey)) {
    ASSIGN_OR_RETURN(const int stated, gguf.ReadCount(kKey));
    if (stated != vocabulary) {
      return DamagedFile(gguf.Place(kKey),
                         absl::StrCat(stated, ", but the tokenizer has ", vocabulary, " tokens"));
    }
  }
  return absl::OkStatus();
}

absl::Status CollectWeights(const GgufFile& gguf, ModelParts& parts) {
  parts.weights = WeightTable(parts.config);
  for (const StoredTensor& tensor : parts.tensors) {
    const auto name = ParseTensorName(NamingScheme::kGguf, tensor.name);
    if (!name.has_value()) {
      return UnsupportedFile(tensor.Place(), "no weight of the llama models that Baton knows");
    }
    RETURN_IF_ERROR(parts.weights.Add(*name, tensor));
  }
  if (const auto missing = parts.weights.FindMissing(); missing.has_value()) {
    FilePlace place = gguf.Place("");
    place.item = absl::StrCat("tensor '", TensorName(NamingScheme::kGguf, *missing), "'");
    return DamagedFile(place, "the tensor is missing");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelParts> LoadGguf(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> gguf, GgufFile::Open(path));
  static constexpr char kArchitecture[] = "general.architecture";
  ASSIGN_OR_RETURN(const std::string architecture, gguf->ReadString(kArchitecture));
  if (architecture != "llama") {
    return UnsupportedFile(
        gguf->Place(kArchitecture),
        absl::StrCat("architecture '", Printable(architecture), "', only llama can be run"));
  }
  RETURN_IF_ERROR(RefuseUnknown(*gguf));
  RETURN_IF_ERROR(RefuseRopeScaling(*gguf));
  RETURN_IF_ERROR(RefuseExperts(*gguf));
  ModelParts parts;
  parts.rotary_order = RotaryOrder::kAdjacentPairs;
  ASSIGN_OR_RETURN(parts.config, ReadConfig(*gguf));
  if (parts.config.name.empty()) {
    parts.config.name = std::filesystem::path(path).stem().string();
  }
  ASSIGN_OR_RETURN(parts.tokenizer, ReadGgufTokenizer(*gguf));
  parts.tokenizer_place = gguf->Place("tokenizer.ggml.tokens");
  parts.config.vocabulary = static_cast<int>(parts.tokenizer.tokens.size());
  RETURN_IF_ERROR(CheckVocabulary(*gguf, parts.config.vocabulary));
  parts.tensors = gguf->tensors();
  parts.config.tied_head =
      std::none_of(parts.tensors.begin(), parts.tensors.end(), [](const StoredTensor& tensor) {
        return tensor.name == TensorName(NamingScheme::kGguf, {.kind = WeightKind::kHead});
      });
  if (const auto problem = FindConfigProblem(parts.config); problem.has_value()) {
    return DamagedFile(gguf->Place(KeyOf(problem->field)), problem->text);
  }
  RETURN_IF_ERROR(CollectWeights(*gguf, parts));
  if (gguf->Has("tokenizer.chat_template")) {
    ASSIGN_OR_RETURN(parts.chat_template, gguf->ReadString("tokenizer.chat_template"));
  }
  parts.files.push_back(std::move(*gguf).TakeFile());
  return parts;
}

}  // namespace baton
