#include "model/weight_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"

namespace baton {
namespace {

constexpr std::size_t kOutsideLayers = 3;

struct NamePart {
  WeightKind kind;
  std::string_view gguf;
  std::string_view hugging_face;
};

constexpr std::array kOutsideNames = {
    NamePart{WeightKind::kTokenEmbedding, "token_embd.weight", "model.embed_tokens.weight"},
    NamePart{WeightKind::kOutputNorm, "output_norm.weight", "model.norm.weight"},
    NamePart{WeightKind::kHead, "output.weight", "lm_head.weight"},
};

// What follows "blk.<layer>." and "model.layers.<layer>.".
constexpr std::array kLayerNames = {
    NamePart{WeightKind::kAttentionNorm, "attn_norm.weight", "input_layernorm.weight"},
    NamePart{WeightKind::kQuery, "attn_q.weight", "self_attn.q_proj.weight"},
    NamePart{WeightKind::kKey, "attn_k.weight", "self_attn.k_proj.weight"},
    NamePart{WeightKind::kValue, "attn_v.weight", "self_attn.v_proj.weight"},
    NamePart{WeightKind::kAttentionOutput, "attn_output.weight", "self_attn.o_proj.weight"},
    NamePart{WeightKind::kFeedForwardNorm, "ffn_norm.weight", "post_attention_layernorm.weight"},
    NamePart{WeightKind::kGate, "ffn_gate.weight", "mlp.gate_proj.weight"},
    NamePart{WeightKind::kUp, "ffn_up.weight", "mlp.up_proj.weight"},
    NamePart{WeightKind::kDown, "ffn_down.weight", "mlp.down_proj.weight"},
};
static_assert(kLayerNames.size() == kLayerWeights.size());

std::string_view LayerPrefix(NamingScheme scheme) {
  return scheme == NamingScheme::kGguf ? "blk." : "model.layers.";
}

std::string_view NameIn(NamingScheme scheme, const NamePart& part) {
  return scheme == NamingScheme::kGguf ? part.gguf : part.hugging_face;
}

}  // namespace

std::string TensorName(NamingScheme scheme, const WeightName& weight) {
  for (const NamePart& part : kOutsideNames) {
    if (part.kind == weight.kind) {
      return std::string(NameIn(scheme, part));
    }
  }
  for (const NamePart& part : kLayerNames) {
    if (part.kind == weight.kind) {
      return absl::StrCat(std::string(LayerPrefix(scheme)), weight.layer.value(), ".",
                          std::string(NameIn(scheme, part)));
    }
  }
  CheckFailed(__FILE__, __LINE__, "a WeightKind that is not in the enumeration");
}

std::optional<WeightName> ParseTensorName(NamingScheme scheme, const std::string& name) {
  for (const NamePart& part : kOutsideNames) {
    if (name == NameIn(scheme, part)) {
      return WeightName{.kind = part.kind};
    }
  }
  const std::string_view prefix = LayerPrefix(scheme);
  if (!name.starts_with(prefix)) {
    return std::nullopt;
  }
  std::uint32_t layer = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, layer);
  if (error != std::errc() || rest == end || *rest != '.') {
    return std::nullopt;
  }
  const std::string_view tail(rest + 1, end);
  for (const NamePart& part : kLayerNames) {
    if (tail == NameIn(scheme, part)) {
      const WeightName weight{.kind = part.kind, .layer = LayerIndex(layer)};
      // "blk.01." would name the same weight a second time.
      return TensorName(scheme, weight) == name ? std::optional(weight) : std::nullopt;
    }
  }
  return std::nullopt;
}

WeightTable::WeightTable(const ModelConfig& config)
    : config_(config),
      slots_(kOutsideLayers + static_cast<std::size_t>(config.layers) * kLayerWeights.size()) {}

std::size_t WeightTable::Slot(const WeightName& name) const {
  switch (name.kind) {
    case WeightKind::kTokenEmbedding:
      return 0;
    case WeightKind::kOutputNorm:
      return 1;
    case WeightKind::kHead:
      return 2;
    case WeightKind::kAttentionNorm:
    case WeightKind::kQuery:
    case WeightKind::kKey:
    case WeightKind::kValue:
    case WeightKind::kAttentionOutput:
    case WeightKind::kFeedForwardNorm:
    case WeightKind::kGate:
    case WeightKind::kUp:
    case WeightKind::kDown:
      break;
  }
  BATON_CHECK(name.layer.value() < static_cast<std::uint32_t>(config_.layers));
  const auto* const kind = std::find(kLayerWeights.begin(), kLayerWeights.end(), name.kind);
  return kOutsideLayers + name.layer.value() * kLayerWeights.size() +
         static_cast<std::size_t>(kind - kLayerWeights.begin());
}

absl::Status WeightTable::Add(const WeightName& name, StoredTensor tensor) {
  if (name.layer.value() >= static_cast<std::uint32_t>(config_.layers)) {
    return DamagedFile(
        tensor.Place(),
        absl::StrCat("layer ", name.layer.value(), " of a model with ", config_.layers, " layers"));
  }
  const WeightShape shape = ShapeOf(config_, name.kind);
  std::vector<std::uint64_t> expected;
  if (!IsNorm(name.kind)) {
    expected.push_back(static_cast<std::uint64_t>(shape.rows));
  }
  expected.push_back(static_cast<std::uint64_t>(shape.columns));
  if (tensor.dimensions != expected) {
    return DamagedFile(
        tensor.Place(),
        absl::StrCat("its shape is [", absl::StrJoin(tensor.dimensions, ", "),
                     "], the model's numbers ask for [", absl::StrJoin(expected, ", "), "]"));
  }
  std::optional<StoredTensor>& slot = slots_[Slot(name)];
  if (slot.has_value()) {
    return DamagedFile(tensor.Place(), absl::StrCat("also in ", slot->path));
  }
  slot = std::move(tensor);
  return absl::OkStatus();
}

std::optional<WeightName> WeightTable::FindMissing() const {
  for (const NamePart& part : kOutsideNames) {
    const WeightName name{.kind = part.kind};
    const bool needed = part.kind != WeightKind::kHead || !config_.tied_head;
    if (needed && !slots_[Slot(name)].has_value()) {
      return name;
    }
  }
  for (int layer = 0; layer < config_.layers; ++layer) {
    for (const WeightKind kind : kLayerWeights) {
      const WeightName name{.kind = kind, .layer = LayerIndex(static_cast<std::uint32_t>(layer))};
      if (!slots_[Slot(name)].has_value()) {
        return name;
      }
    }
  }
  return std::nullopt;
}

const StoredTensor& WeightTable::Get(const WeightName& name) const {
  const bool tied = config_.tied_head && name.kind == WeightKind::kHead;
  const auto& slot = slots_[tied ? Slot({.kind = WeightKind::kTokenEmbedding}) : Slot(name)];
  BATON_CHECK(slot.has_value());
  return *slot;
}

}  // namespace baton
