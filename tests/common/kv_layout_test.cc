#include "common/kv_layout.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

EngineIdentity Example() {
  return {.kv = {.layers = 30,
                 .kv_heads = 3,
                 .head_dim = 64,
                 .element_type = "bf16",
                 .layout_id = "cpu-kpair-v1",
                 .layer_bytes = 12288},
          .arithmetic = "cpu-plain",
          .rope_base = 100000,
          .rms_epsilon = 1e-5};
}

TEST(KvLayout, BlockOfTheExampleModelHasTheSizeOfTheDesign) {
  EXPECT_EQ(Example().kv.block_bytes(), 368640u);
}

// T54, F36: two workers that would compute different tokens are told apart, field by field, in
// words.
TEST(KvLayout, EveryFieldChangesTheFingerprintAndIsNamed) {
  const EngineIdentity base = Example();
  EXPECT_EQ(DescribeDifference(base, base), "");

  const auto expect_named = [&](const EngineIdentity& other, const std::string& field) {
    EXPECT_NE(LayoutFingerprint(base), LayoutFingerprint(other)) << field;
    EXPECT_NE(DescribeDifference(base, other).find(field + ": ours "), std::string::npos) << field;
  };
  EngineIdentity other = base;
  other.model_fingerprint[0] = 1;
  expect_named(other, "model_fingerprint");
  other = base;
  other.tokenizer_fingerprint[0] = 1;
  expect_named(other, "tokenizer_fingerprint");
  other = base;
  other.kv.layers = 31;
  expect_named(other, "layers");
  other = base;
  other.kv.kv_heads = 4;
  expect_named(other, "kv_heads");
  other = base;
  other.kv.head_dim = 128;
  expect_named(other, "head_dim");
  other = base;
  other.kv.block_tokens = 32;
  expect_named(other, "block_tokens");
  other = base;
  other.kv.element_type = "f16";
  expect_named(other, "element_type");
  other = base;
  other.kv.layout_id = "cuda-v1";
  expect_named(other, "layout_id");
  other = base;
  other.kv.layer_bytes = 1;
  expect_named(other, "layer_bytes");
  other = base;
  other.arithmetic = "cpu-avx2";
  expect_named(other, "arithmetic");
  other = base;
  other.rope_base = 10000;
  expect_named(other, "rope_base");
  other = base;
  other.rms_epsilon = 1e-6;
  expect_named(other, "rms_epsilon");
}

}  // namespace
}  // namespace baton
