#include "model/huggingface_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "model/json_reader.h"

namespace baton {
namespace {

// The key that a number of the config comes from.
std::string KeyOf(ConfigField field) {
  switch (field) {
    case ConfigField::kLayers:
      return "num_hidden_layers";
    case ConfigField::kHidden:
      return "hidden_size";
    case ConfigField::kFeedForward:
      return "intermediate_size";
    case ConfigField::kHeads:
      return "num_attention_heads";
    case ConfigField::kKvHeads:
      return "num_key_value_heads";
    case ConfigField::kHeadDim:
      return "head_dim";
    case ConfigField::kVocabulary:
      return "vocab_size";
    case ConfigField::kContextTokens:
      return "max_position_embeddings";
    case ConfigField::kRmsEpsilon:
      return "rms_norm_eps";
    case ConfigField::kRopeBase:
      return "rope_theta";
  }
  CheckFailed(__FILE__, __LINE__, "a ConfigField that is not in the enumeration");
}

absl::Status CheckArchitecture(const JsonReader& reader) {
  ASSIGN_OR_RETURN(const auto type, reader.String("model_type"));
  if (!type.has_value()) {
    return DamagedFile(reader.Place("model_type"), "the key is missing");
  }
  if (*type != "llama") {
    return UnsupportedFile(
        reader.Place("model_type"),
        absl::StrCat("model type '", Printable(*type), "', only llama can be run"));
  }
  const nlohmann::json* architectures = reader.Find("architectures");
  if (architectures == nullptr) {
    return absl::OkStatus();
  }
  if (!architectures->is_array()) {
    return DamagedFile(reader.Place("architectures"), "not an array");
  }
  const bool listed =
      std::any_of(architectures->begin(), architectures->end(), [](const nlohmann::json& name) {
        return name.is_string() && name.get_ref<const std::string&>() == "LlamaForCausalLM";
      });
  if (!listed) {
    return UnsupportedFile(reader.Place("architectures"),
                           absl::StrCat(Printable(architectures->dump(-1, ' ', true)),
                                        ", only LlamaForCausalLM can be run"));
  }
  return absl::OkStatus();
}

absl::Status RefuseUnsupported(const JsonReader& reader) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    ASSIGN_OR_RETURN(const auto has_bias, reader.Bool(key));
    if (has_bias.value_or(false)) {
      return UnsupportedFile(reader.Place(key), "projections with a bias");
    }
  }
  ASSIGN_OR_RETURN(const auto activation, reader.String("hidden_act"));
  if (activation.has_value() && *activation != "silu") {
    return UnsupportedFile(reader.Place("hidden_act"),
                           absl::StrCat("activation '", Printable(*activation), "'"));
  }
  if (reader.Find("quantization_config") != nullptr) {
    return UnsupportedFile(reader.Place("quantization_config"), "quantized weights");
  }
  return absl::OkStatus();
}

// The rotary base and the absence of scaling, from `rope_theta` and `rope_scaling` or from
// `rope_parameters`, which newer files write for both.
absl::StatusOr<double> ReadRopeBase(const JsonDocument& document, const JsonReader& reader) {
  constexpr double kDefault = 10000;
  ASSIGN_OR_RETURN(auto base, reader.Number("rope_theta"));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* member = reader.Find(key);
    if (member == nullptr) {
      continue;
    }
    if (!member->is_object()) {
      return DamagedFile(reader.Place(key), "not an object");
    }
    const JsonReader inner(document, *member);
    for (const char* type_key : {"rope_type", "type"}) {
      ASSIGN_OR_RETURN(const auto type, inner.String(type_key));
      if (type.has_value() && *type != "default") {
        return UnsupportedFile(reader.Place(key),
                               absl::StrCat("rotary scaling '", Printable(*type), "'"));
      }
    }
    if (inner.Find("factor") != nullptr || inner.Find("partial_rotary_factor") != nullptr) {
      return UnsupportedFile(reader.Place(key), "rotary scaling by a factor");
    }
    ASSIGN_OR_RETURN(const auto inner_base, inner.Number("rope_theta"));
    if (inner_base.has_value()) {
      base = inner_base;
    }
  }
  return base.value_or(kDefault);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadHuggingFaceConfig(const JsonDocument& document) {
  const JsonReader reader(document);
  RETURN_IF_ERROR(CheckArchitecture(reader));
  RETURN_IF_ERROR(RefuseUnsupported(reader));
  ModelConfig config;
  ASSIGN_OR_RETURN(const auto name, reader.String("_name_or_path"));
  config.name = name.value_or("");
  ASSIGN_OR_RETURN(config.layers, reader.RequiredCount("num_hidden_layers"));
  ASSIGN_OR_RETURN(config.hidden, reader.RequiredCount("hidden_size"));
  ASSIGN_OR_RETURN(config.feed_forward, reader.RequiredCount("intermediate_size"));
  ASSIGN_OR_RETURN(config.heads, reader.RequiredCount("num_attention_heads"));
  ASSIGN_OR_RETURN(config.vocabulary, reader.RequiredCount("vocab_size"));
  ASSIGN_OR_RETURN(config.context_tokens, reader.RequiredCount("max_position_embeddings"));
  ASSIGN_OR_RETURN(const auto kv_heads, reader.Count("num_key_value_heads"));
  config.kv_heads = kv_heads.value_or(config.heads);
  ASSIGN_OR_RETURN(const auto head_dim, reader.Count("head_dim"));
  if (head_dim.has_value()) {
    config.head_dim = *head_dim;
  } else if (config.heads < 1 || config.hidden % config.heads != 0) {
    return DamagedFile(
        reader.Place("num_attention_heads"),
        absl::StrCat(config.heads, " heads do not divide an embedding of width ", config.hidden));
  } else {
    config.head_dim = config.hidden / config.heads;
  }
  // The defaults are those of the format, for files that leave the key out.
  ASSIGN_OR_RETURN(const auto epsilon, reader.Number("rms_norm_eps"));
  config.rms_epsilon = static_cast<float>(epsilon.value_or(1e-6));
  ASSIGN_OR_RETURN(const double base, ReadRopeBase(document, reader));
  config.rope_base = static_cast<float>(base);
  ASSIGN_OR_RETURN(const auto tied, reader.Bool("tie_word_embeddings"));
  config.tied_head = tied.value_or(false);
  if (const auto problem = FindConfigProblem(config); problem.has_value()) {
    return DamagedFile(reader.Place(KeyOf(problem->field)), problem->text);
  }
  return config;
}

}  // namespace baton
