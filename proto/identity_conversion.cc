#include "proto/identity_conversion.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton {
namespace {

absl::Status ReadDigest(const char* field, const std::string& bytes, Digest& digest) {
  if (bytes.size() != digest.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("identity.", field, ": has ", bytes.size(), " bytes instead of 32"));
  }
  std::transform(bytes.begin(), bytes.end(), digest.begin(),
                 [](char c) { return static_cast<std::uint8_t>(c); });
  return absl::OkStatus();
}

}  // namespace

v1::EngineIdentity ToProto(const EngineIdentity& identity) {
  v1::EngineIdentity proto;
  proto.set_model_fingerprint(std::string(AsBytes(identity.model_fingerprint)));
  proto.set_tokenizer_fingerprint(std::string(AsBytes(identity.tokenizer_fingerprint)));
  proto.set_layers(identity.kv.layers);
  proto.set_kv_heads(identity.kv.kv_heads);
  proto.set_head_dim(identity.kv.head_dim);
  proto.set_block_tokens(identity.kv.block_tokens);
  proto.set_element_type(identity.kv.element_type);
  proto.set_layout_id(identity.kv.layout_id);
  proto.set_layer_bytes(identity.kv.layer_bytes);
  proto.set_arithmetic(identity.arithmetic);
  proto.set_rope_base(identity.rope_base);
  proto.set_rms_epsilon(identity.rms_epsilon);
  return proto;
}

absl::StatusOr<EngineIdentity> FromProto(const v1::EngineIdentity& proto) {
  EngineIdentity identity;
  RETURN_IF_ERROR(
      ReadDigest("model_fingerprint", proto.model_fingerprint(), identity.model_fingerprint));
  RETURN_IF_ERROR(ReadDigest("tokenizer_fingerprint", proto.tokenizer_fingerprint(),
                             identity.tokenizer_fingerprint));
  if (proto.layers() <= 0 || proto.kv_heads() <= 0 || proto.head_dim() <= 0 ||
      proto.block_tokens() <= 0 || proto.layer_bytes() == 0) {
    return absl::InvalidArgumentError("identity: a count is not positive");
  }
  identity.kv = {.layers = proto.layers(),
                 .kv_heads = proto.kv_heads(),
                 .head_dim = proto.head_dim(),
                 .block_tokens = proto.block_tokens(),
                 .element_type = proto.element_type(),
                 .layout_id = proto.layout_id(),
                 .layer_bytes = proto.layer_bytes()};
  identity.arithmetic = proto.arithmetic();
  identity.rope_base = proto.rope_base();
  identity.rms_epsilon = proto.rms_epsilon();
  return identity;
}

}  // namespace baton
