#include <gtest/gtest.h>

#include <limits>

#include "worker/worker_core.h"

namespace baton {
namespace {

v1::SequenceSpec Valid() {
  v1::SequenceSpec spec;
  spec.add_prompt(1);
  spec.set_max_tokens(4);
  spec.add_stop_token_ids(2);
  v1::EngineSampling& sampling = *spec.mutable_sampling();
  sampling.set_temperature(0.5f);
  sampling.set_top_p(0.9f);
  sampling.set_repetition_penalty(1);
  (*sampling.mutable_logit_bias())[9] = 1.5f;
  (*sampling.mutable_logit_bias())[3] = -1.5f;
  return spec;
}

// T50: no field is left behind or cut; a seed has 64 bits.
TEST(SequenceRequest, CarriesEveryField) {
  v1::SequenceSpec spec = Valid();
  spec.set_min_tokens(2);
  spec.mutable_sampling()->set_top_k(7);
  spec.mutable_sampling()->set_min_p(0.1f);
  spec.mutable_sampling()->set_frequency_penalty(-1);
  spec.mutable_sampling()->set_presence_penalty(2);
  spec.mutable_sampling()->set_seed(~std::uint64_t{0});

  spec.set_logprobs(0);
  spec.set_prompt_logprobs(true);
  spec.set_cache_salt("salt");
  spec.set_zone(std::string(128, 'z'));

  const auto request = MakeSequenceRequest(spec);

  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->logprobs, 0);
  EXPECT_TRUE(request->prompt_logprobs);
  EXPECT_EQ(request->cache_salt, "salt");
  EXPECT_EQ(request->zone, std::string(128, 'z'));
  EXPECT_FALSE(MakeSequenceRequest(Valid())->logprobs.has_value());
  EXPECT_EQ(request->prompt, std::vector<TokenId>{TokenId(1)});
  EXPECT_EQ(request->max_tokens, 4);
  EXPECT_EQ(request->min_tokens, 2);
  EXPECT_EQ(request->stop_tokens, std::vector<TokenId>{TokenId(2)});
  EXPECT_EQ(request->sampling.temperature, 0.5f);
  EXPECT_EQ(request->sampling.top_p, 0.9f);
  EXPECT_EQ(request->sampling.top_k, 7);
  EXPECT_EQ(request->sampling.min_p, 0.1f);
  EXPECT_EQ(request->sampling.frequency_penalty, -1);
  EXPECT_EQ(request->sampling.presence_penalty, 2);
  EXPECT_EQ(request->sampling.seed, ~std::uint64_t{0});
  ASSERT_EQ(request->sampling.logit_bias.size(), 2u);
  EXPECT_EQ(request->sampling.logit_bias[0].token, TokenId(3));
}

// B23: neither NaN nor anything else that would stop an engine gets past this.
TEST(SequenceRequest, RefusesWhatTheTextEdgeWouldNeverSend) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::function<void(v1::SequenceSpec&)>> damages = {
      [](auto& spec) { spec.set_max_tokens(0); },
      [](auto& spec) { spec.set_max_tokens(~0u); },
      [](auto& spec) { spec.set_min_tokens(5); },
      [&](auto& spec) { spec.mutable_sampling()->set_temperature(nan); },
      [](auto& spec) { spec.mutable_sampling()->set_temperature(-1); },
      [](auto& spec) { spec.mutable_sampling()->set_top_p(0); },
      [&](auto& spec) { spec.mutable_sampling()->set_top_p(nan); },
      [](auto& spec) { spec.mutable_sampling()->set_min_p(1.5f); },
      [](auto& spec) { spec.mutable_sampling()->set_repetition_penalty(0); },
      [&](auto& spec) { spec.mutable_sampling()->set_frequency_penalty(nan); },
      [](auto& spec) { spec.mutable_sampling()->set_presence_penalty(2.5f); },
      [&](auto& spec) { (*spec.mutable_sampling()->mutable_logit_bias())[1] = nan; },
      [](auto& spec) { spec.set_logprobs(21); },
      [](auto& spec) { spec.set_prompt_logprobs(true); },
  };
  for (std::size_t i = 0; i < damages.size(); ++i) {
    v1::SequenceSpec spec = Valid();
    damages[i](spec);
    EXPECT_EQ(MakeSequenceRequest(spec).status().code(), absl::StatusCode::kInvalidArgument) << i;
  }
}

}  // namespace
}  // namespace baton
