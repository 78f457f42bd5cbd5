// Every row of faults.md section 5 over gRPC, at the router and at a decode worker itself. After
// each the server goes on.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/status_conversion.h"
#include "tests/support/cluster.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kLongestName = 128;

struct BadInput {
  std::string name;
  std::function<void(v1::CompleteRequest&)> spoil;  // what is wrong about a good request
  std::string field;
  std::vector<std::string> in_message;  // B22: numbers and names that help
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

BadInput WithSampling(const std::string& name, std::function<void(v1::Sampling&)> spoil) {
  return {.name = name + " outside its range",
          .spoil = [spoil = std::move(spoil)](
                       v1::CompleteRequest& request) { spoil(*request.mutable_sampling()); },
          .field = "sampling." + name};
}

void AddPrompts(std::vector<BadInput>& inputs) {
  inputs.push_back({"no prompt", [](auto& request) { request.clear_prompt(); }, "prompt"});
  inputs.push_back({"empty text", [](auto& request) { request.set_text(""); }, "prompt"});
  inputs.push_back(
      {"no tokens", [](auto& request) { request.mutable_tokens()->Clear(); }, "prompt"});
  inputs.push_back({"no messages", [](auto& request) { request.mutable_chat(); }, "prompt"});
  inputs.push_back({"not UTF-8",
                    [](auto& request) { request.set_text("caf\xc3\xa9 \xff"); },
                    "text",
                    {"byte 6"}});
  inputs.push_back({"lone surrogate",
                    [](auto& request) { request.set_text("\xed\xa0\x80"); },
                    "text",
                    {"byte 0"}});
  inputs.push_back({"half a character",
                    [](auto& request) { request.set_text("ab\xe2\x82"); },
                    "text",
                    {"byte 2"}});
  inputs.push_back({"message not UTF-8",
                    [](auto& request) {
                      request.mutable_chat()->add_messages()->set_role("system");
                      v1::Message& message = *request.mutable_chat()->add_messages();
                      message.set_role("user");
                      message.set_content("x\x80");
                    },
                    "chat.messages[1].content",
                    {"byte 1"}});
  inputs.push_back({"id of no token",
                    [](auto& request) {
                      request.mutable_tokens()->add_ids(7);  // after the 20 of the good request
                      request.mutable_tokens()->add_ids(kTinyVocabulary);
                    },
                    "tokens.ids[21]",
                    {"512"}});
  inputs.push_back({"largest id",
                    [](auto& request) { request.mutable_tokens()->add_ids(~0u); },
                    "tokens.ids[20]",
                    {"4294967295"}});
  inputs.push_back(
      {"prompt as long as the context",
       [](auto& request) { request.mutable_tokens()->mutable_ids()->Resize(kTinyContext, 5); },
       "prompt",
       {"16384"}});
  // B30: above the 4 MiB that gRPC takes by default, below our limit.
  inputs.push_back(
      {"5 MB of ids",
       [](auto& request) { request.mutable_tokens()->mutable_ids()->Resize(5'000'000, 5); },
       "prompt",
       {"5000000", "16384"}});
  // F29, B19.
  inputs.push_back({"10 MB of text",
                    [](auto& request) { request.set_text(std::string(10'000'000, 'x')); },
                    "prompt",
                    {"10000000", "16384"}});
}

void AddLengths(std::vector<BadInput>& inputs) {
  inputs.push_back(
      {"max_tokens 0", [](auto& request) { request.set_max_tokens(0); }, "max_tokens", {"0"}});
  inputs.push_back({"max_tokens above the context",
                    [](auto& request) { request.set_max_tokens(kTinyContext + 1); },
                    "max_tokens",
                    {"16385", "16384"}});
  inputs.push_back(
      {"largest max_tokens", [](auto& request) { request.set_max_tokens(~0u); }, "max_tokens"});
  inputs.push_back({"prompt and max_tokens above the context",
                    [](auto& request) {
                      request.mutable_tokens()->mutable_ids()->Resize(kTinyContext - 10, 5);
                      request.set_max_tokens(11);
                    },
                    "max_tokens",
                    {"11", "16374", "16384"}});
  inputs.push_back({"min_tokens above max_tokens",
                    [](auto& request) {
                      request.set_max_tokens(3);
                      request.set_min_tokens(4);
                    },
                    "min_tokens",
                    {"4", "3"}});
}

void AddSampling(std::vector<BadInput>& inputs) {
  for (const float value : {kNaN, kInfinity, -kInfinity, -0.1f, 2.1f}) {  // B23
    inputs.push_back(WithSampling(
        "temperature", [value](v1::Sampling& sampling) { sampling.set_temperature(value); }));
  }
  for (const float value : {kNaN, kInfinity, -kInfinity, 0.0f, -0.5f, 1.1f}) {
    inputs.push_back(
        WithSampling("top_p", [value](v1::Sampling& sampling) { sampling.set_top_p(value); }));
  }
  for (const float value : {kNaN, kInfinity, -kInfinity, -0.1f, 1.1f}) {
    inputs.push_back(
        WithSampling("min_p", [value](v1::Sampling& sampling) { sampling.set_min_p(value); }));
  }
  for (const float value : {kNaN, kInfinity, -kInfinity, 0.0f, -1.0f, 2.1f}) {
    inputs.push_back(WithSampling("repetition_penalty", [value](v1::Sampling& sampling) {
      sampling.set_repetition_penalty(value);
    }));
  }
  for (const float value : {kNaN, kInfinity, -kInfinity, -2.1f, 2.1f}) {
    inputs.push_back(WithSampling("frequency_penalty", [value](v1::Sampling& sampling) {
      sampling.set_frequency_penalty(value);
    }));
    inputs.push_back(WithSampling("presence_penalty", [value](v1::Sampling& sampling) {
      sampling.set_presence_penalty(value);
    }));
  }
  for (const float value : {kNaN, kInfinity, -kInfinity}) {
    inputs.push_back(WithSampling("logit_bias", [value](v1::Sampling& sampling) {
      (*sampling.mutable_logit_bias())[5] = value;
    }));
  }
  inputs.push_back(WithSampling("logit_bias", [](v1::Sampling& sampling) {
    (*sampling.mutable_logit_bias())[kTinyVocabulary] = 1;
  }));
  inputs.push_back(WithSampling("logit_bias", [](v1::Sampling& sampling) {
    for (std::uint32_t id = 0; id < 1025; ++id) {
      (*sampling.mutable_logit_bias())[id] = 1;
    }
  }));
}

void AddStops(std::vector<BadInput>& inputs) {
  inputs.push_back({"17 stop strings",
                    [](auto& request) {
                      for (int i = 0; i < 17; ++i) {
                        request.add_stop(absl::StrCat("stop", i));
                      }
                    },
                    "stop[16]"});
  inputs.push_back({"empty stop string",
                    [](auto& request) {
                      request.add_stop("good");
                      request.add_stop("");
                    },
                    "stop[1]"});
  inputs.push_back({"stop string of 257 bytes",
                    [](auto& request) { request.add_stop(std::string(257, 's')); }, "stop[0]"});
  inputs.push_back({"stop token of no vocabulary",
                    [](auto& request) { request.add_stop_token_ids(kTinyVocabulary); },
                    "stop_token_ids[0]"});
}

void AddOthers(std::vector<BadInput>& inputs) {
  inputs.push_back({"n 0", [](auto& request) { request.set_n(0); }, "n"});
  inputs.push_back({"n 17", [](auto& request) { request.set_n(17); }, "n"});
  inputs.push_back({"largest n", [](auto& request) { request.set_n(~0u); }, "n"});
  inputs.push_back({"logprobs 21", [](auto& request) { request.set_logprobs(21); }, "logprobs"});
  const std::string too_long(kLongestName + 1, 'n');
  inputs.push_back(
      {"long request_id", [=](auto& request) { request.set_request_id(too_long); }, "request_id"});
  inputs.push_back(
      {"long cache_salt", [=](auto& request) { request.set_cache_salt(too_long); }, "cache_salt"});
  inputs.push_back(
      {"long session", [=](auto& request) { request.set_session(too_long); }, "session"});
  inputs.push_back({"long zone", [=](auto& request) { request.set_zone(too_long); }, "zone"});
  inputs.push_back({"unknown model",
                    [](auto& request) { request.set_model("no-such-model"); },
                    "model",
                    {"no-such-model", "tiny"},
                    absl::StatusCode::kNotFound});
  inputs.push_back({"unknown path",
                    [](auto& request) { request.set_path(static_cast<v1::Path>(9)); },
                    "path",
                    {"9"}});
  inputs.push_back({"unknown field",
                    [](auto& request) {
                      request.GetReflection()->MutableUnknownFields(&request)->AddVarint(77, 1);
                    },
                    "#77"});
  inputs.push_back({"unknown field of a part",
                    [](auto& request) {
                      v1::Sampling& sampling = *request.mutable_sampling();
                      sampling.GetReflection()->MutableUnknownFields(&sampling)->AddVarint(12, 1);
                    },
                    "sampling.#12"});
}

std::vector<BadInput> AllBadInputs() {
  std::vector<BadInput> inputs;
  AddPrompts(inputs);
  AddLengths(inputs);
  AddSampling(inputs);
  AddStops(inputs);
  AddOthers(inputs);
  return inputs;
}

v1::CompleteRequest GoodRequest() {
  return GreedyRequest(TinyPrompt(1, 20), 4, v1::PATH_UNSPECIFIED);
}

// The parameter says whom is asked: the router, or a decode worker directly.
class BadInputTest : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    auto cluster = Cluster::Start();
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  void SetUp() override {
    ASSERT_NE(cluster_, nullptr);
    const bool at_router = GetParam() == "Router";
    client_ = std::make_unique<CompletionsClient>(at_router ? cluster_->router().address()
                                                            : cluster_->decode().address());
  }
  void TearDown() override { EXPECT_TRUE(cluster_->WaitUntilIdle()); }

  void ExpectServiceGoesOn() {
    const auto response = client_->Complete(GoodRequest());
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->usage().completion_tokens(), 4u);
  }

  static std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<CompletionsClient> client_;
};

std::unique_ptr<Cluster> BadInputTest::cluster_;

INSTANTIATE_TEST_SUITE_P(,
                         BadInputTest,
                         testing::Values("Router", "DecodeWorker"),
                         [](const auto& instance) { return instance.param; });

TEST_P(BadInputTest, IsRefusedByName) {
  for (const BadInput& input : AllBadInputs()) {
    SCOPED_TRACE(input.name);
    v1::CompleteRequest request = GoodRequest();
    input.spoil(request);

    const absl::Status unary = client_->Complete(request).status();
    const absl::Status streamed = *client_->Stream(request)->WaitForEnd();

    for (const absl::Status& status : {unary, streamed}) {
      EXPECT_EQ(status.code(), input.code) << status;
      EXPECT_EQ(ViolatedField(status), input.field) << status;
      for (const std::string& piece : input.in_message) {
        EXPECT_NE(std::string(status.message()).find(piece), std::string::npos)
            << piece << " in " << status;
      }
    }
    ExpectServiceGoesOn();
  }
}

// What looks bad and is not.
TEST_P(BadInputTest, TheLastGoodValuesAreTaken) {
  const std::vector<std::function<void(v1::CompleteRequest&)>> changes = {
      [](auto& request) { request.mutable_sampling()->set_top_k(0); },
      [](auto& request) { request.mutable_sampling()->set_top_k(~0u); },
      [](auto& request) { request.mutable_sampling()->set_temperature(1e-38f); },  // B25
      [](auto& request) { request.mutable_sampling()->set_temperature(2); },
      [](auto& request) { request.mutable_sampling()->set_top_p(1e-30f); },
      [](auto& request) { request.set_n(1); },
      [](auto& request) { request.set_logprobs(20); },
      [](auto& request) { request.set_cache_salt(std::string(kLongestName, '\xff')); },
      [](auto& request) { request.set_request_id(std::string(kLongestName, 'r')); },
      [](auto& request) {
        request.set_text(std::string("\0\xef\xbb\xbf", 4) + "\xf0\x9f\x98\x80");
      },
      [](auto& request) { request.mutable_tokens()->mutable_ids()->Resize(kTinyContext - 4, 5); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("change ", i));
    v1::CompleteRequest request = GoodRequest();
    changes[i](request);
    const auto response = client_->Complete(request);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->usage().completion_tokens(), 4u);
  }
}

TEST_P(BadInputTest, ARequestIdThatRunsIsTaken) {
  v1::CompleteRequest request = GreedyRequest(TinyPrompt(2, 20), 6000, v1::PATH_UNSPECIFIED);
  request.set_request_id("twice");
  const auto first = client_->Stream(request);
  ASSERT_TRUE(first->WaitForTokens(1));

  const absl::Status second = client_->Complete(request).status();

  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists) << second;
  EXPECT_EQ(ViolatedField(second), "request_id");
  first->Cancel();
  EXPECT_EQ(first->WaitForEnd()->code(), absl::StatusCode::kCancelled);
  // The id is free again once its request has ended.
  request.set_max_tokens(2);
  EXPECT_TRUE(WaitUntil([&] { return client_->Complete(request).ok(); }, kPatience));
}

TEST_P(BadInputTest, AMessageAbove16MiBIsRefusedByGrpc) {
  v1::CompleteRequest request = GoodRequest();
  request.set_text(std::string((16 << 20) + 1, 'x'));

  const absl::Status status = client_->Complete(request).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  ExpectServiceGoesOn();
}

// T01's other end: what the pool could never hold is refused at once, not queued for ever.
TEST_P(BadInputTest, WhatThePoolCanNeverHoldIsRefused) {
  auto small = Cluster::Start({.kv_pool_size = "256KiB"});
  ASSERT_TRUE(small.ok()) << small.status();
  const CompletionsClient client(GetParam() == "Router" ? (*small)->router().address()
                                                        : (*small)->decode().address());

  const absl::Status status =
      client.Complete(GreedyRequest(TinyPrompt(3, 700), 4, v1::PATH_COLOCATED)).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(client.Complete(GoodRequest()).ok());
  EXPECT_TRUE((*small)->WaitUntilIdle());
}

}  // namespace
}  // namespace baton
