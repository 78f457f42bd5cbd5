#include "proto/identity_conversion.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

EngineIdentity Example() {
  EngineIdentity identity{.kv = {.layers = 30,
                                 .kv_heads = 3,
                                 .head_dim = 64,
                                 .element_type = "bf16",
                                 .layout_id = "cpu",
                                 .layer_bytes = 12288},
                          .arithmetic = "cpu-plain",
                          .rope_base = 100000,
                          .rms_epsilon = 1e-5};
  identity.model_fingerprint.fill(7);
  identity.tokenizer_fingerprint.fill(200);
  return identity;
}

TEST(IdentityConversion, RoundTrips) {
  const auto back = FromProto(ToProto(Example()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, Example());
}

TEST(IdentityConversion, RefusesWhatNoWorkerCanHave) {
  v1::EngineIdentity proto = ToProto(Example());
  proto.set_model_fingerprint("short");
  EXPECT_EQ(FromProto(proto).status().code(), absl::StatusCode::kInvalidArgument);
  proto = ToProto(Example());
  proto.set_layers(-1);
  EXPECT_EQ(FromProto(proto).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
