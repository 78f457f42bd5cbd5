// faults.md section 5 over gRPC: every row, and after each of them a good request still works.

#include "frontend/request_validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/frontend/completions_harness.h"
#include "tests/support/patience.h"

namespace baton {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

v1::CompleteRequest GoodRequest() {
  v1::CompleteRequest request;
  request.set_text("a good request");
  request.set_max_tokens(4);
  return request;
}

struct Row {
  std::string name;
  std::function<void(v1::CompleteRequest&)> spoil;  // applied to a good request
  std::string field;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  std::vector<std::string> message_parts = {};
};

void AddUnknown(google::protobuf::Message& message, int number) {
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(number, 1);
}

v1::TokenIds Ids(std::size_t count, std::uint32_t id = 10) {
  v1::TokenIds ids;
  for (std::size_t i = 0; i < count; ++i) {
    ids.add_ids(id);
  }
  return ids;
}

void AddMessage(v1::CompleteRequest& request, const std::string& role, const std::string& content) {
  v1::Message& message = *request.mutable_chat()->add_messages();
  message.set_role(role);
  message.set_content(content);
}

// The tiny model: vocabulary 512, context 1024.
std::vector<Row> PromptRows() {
  using R = v1::CompleteRequest;
  return {
      {"no prompt", [](R& r) { r.clear_prompt(); }, "prompt"},
      {"empty text", [](R& r) { r.set_text(""); }, "prompt"},
      {"empty tokens", [](R& r) { r.mutable_tokens(); }, "prompt"},
      {"empty chat", [](R& r) { r.mutable_chat(); }, "prompt"},
      {"text not UTF-8", [](R& r) { r.set_text("ab\xFFz"); }, "text", {}, {"byte 2"}},
      {"lone surrogate", [](R& r) { r.set_text("abc\xED\xA0\x80"); }, "text", {}, {"byte 3"}},
      {"half a character", [](R& r) { r.set_text("\xF0\x9F"); }, "text", {}, {"byte 0"}},
      {"chat not UTF-8",
       [](R& r) {
         AddMessage(r, "system", "fine");
         AddMessage(r, "user", "x\xC0");
       },
       "chat.messages[1].content",
       {},
       {"byte 1"}},
      {"unknown role",
       [](R& r) { AddMessage(r, "robot", "x"); },
       "chat.messages[0].role",
       {},
       {"robot"}},
      {"no role", [](R& r) { AddMessage(r, "", "x"); }, "chat.messages[0].role"},
      {"token id at the vocabulary",
       [](R& r) {
         *r.mutable_tokens() = Ids(3);
         r.mutable_tokens()->set_ids(1, 512);
       },
       "tokens.ids[1]",
       {},
       {"512"}},
      {"largest token id", [](R& r) { *r.mutable_tokens() = Ids(1, ~0u); }, "tokens.ids[0]"},
      // B19, B22: both numbers stand in the message.
      {"prompt fills the context",
       [](R& r) {
         *r.mutable_tokens() = Ids(1024);
         r.set_max_tokens(1);
       },
       "prompt",
       {},
       {"1024"}},
      {"prompt above the context",
       [](R& r) { *r.mutable_tokens() = Ids(1025); },
       "prompt",
       {},
       {"1025", "1024"}},
      {"prompt far above the context",
       [](R& r) { r.set_text(std::string(10'000'000, 'a')); },
       "prompt",
       {},
       {"10000000", "1024"}},
      {"prompt and max_tokens above the context",
       [](R& r) {
         *r.mutable_tokens() = Ids(1000);
         r.set_max_tokens(25);
       },
       "max_tokens",
       {},
       {"1000", "25", "1024"}},
      {"unknown model",
       [](R& r) { r.set_model("gpt"); },
       "model",
       absl::StatusCode::kNotFound,
       {"gpt", "tiny"}},
  };
}

// B23: NaN and both infinities of every number, besides what is just outside its range.
std::vector<Row> SamplingRows() {
  using R = v1::CompleteRequest;
  std::vector<Row> rows;
  const auto bad = [&rows](const std::string& field, std::initializer_list<float> values,
                           void (v1::Sampling::*set)(float)) {
    for (const float value : values) {
      rows.push_back({field + " " + std::to_string(value),
                      [set, value](R& r) { (r.mutable_sampling()->*set)(value); },
                      "sampling." + field});
    }
  };
  bad("temperature", {kNan, kInfinity, -kInfinity, -0.1f, 2.1f}, &v1::Sampling::set_temperature);
  bad("top_p", {kNan, kInfinity, -kInfinity, 0.0f, -1.0f, 1.1f}, &v1::Sampling::set_top_p);
  bad("min_p", {kNan, kInfinity, -kInfinity, -0.1f, 1.1f}, &v1::Sampling::set_min_p);
  bad("repetition_penalty", {kNan, kInfinity, -kInfinity, 0.0f, -1.0f, 2.1f},
      &v1::Sampling::set_repetition_penalty);
  bad("frequency_penalty", {kNan, kInfinity, -kInfinity, -2.1f, 2.1f},
      &v1::Sampling::set_frequency_penalty);
  bad("presence_penalty", {kNan, kInfinity, -kInfinity, -2.1f, 2.1f},
      &v1::Sampling::set_presence_penalty);
  const auto bias = [&rows](const std::string& name, std::uint32_t id, float value) {
    rows.push_back({name, [=](R& r) { (*r.mutable_sampling()->mutable_logit_bias())[id] = value; },
                    "sampling.logit_bias"});
  };
  bias("logit_bias outside the vocabulary", 512, 1);
  bias("logit_bias NaN", 3, kNan);
  bias("logit_bias infinite", 3, kInfinity);
  bias("logit_bias of minus infinity", 3, -kInfinity);
  rows.push_back({"logit_bias of 1,025 entries",
                  [](R& r) {
                    for (std::uint32_t id = 0; id < 1025; ++id) {
                      (*r.mutable_sampling()->mutable_logit_bias())[id] = 0;
                    }
                  },
                  "sampling.logit_bias",
                  {},
                  {"1025"}});
  return rows;
}

std::vector<Row> LimitRows() {
  using R = v1::CompleteRequest;
  const auto repeat_stop = [](R& r, int count) {
    for (int i = 0; i < count; ++i) {
      r.add_stop("stop");
    }
  };
  return {
      // B17, F31.
      {"max_tokens 0", [](R& r) { r.set_max_tokens(0); }, "max_tokens"},
      {"max_tokens above the context",
       [](R& r) { r.set_max_tokens(1025); },
       "max_tokens",
       {},
       {"1025", "1024"}},
      {"max_tokens 2^31", [](R& r) { r.set_max_tokens(1u << 31); }, "max_tokens"},
      {"max_tokens -1 as unsigned", [](R& r) { r.set_max_tokens(~0u); }, "max_tokens"},
      {"min_tokens above max_tokens",
       [](R& r) { r.set_min_tokens(5); },
       "min_tokens",
       {},
       {"5", "4"}},
      {"min_tokens above the room",
       [](R& r) {
         r.clear_max_tokens();
         *r.mutable_tokens() = Ids(1000);
         r.set_min_tokens(25);
       },
       "min_tokens",
       {},
       {"25", "24"}},
      {"n 0", [](R& r) { r.set_n(0); }, "n"},
      {"n 17", [](R& r) { r.set_n(17); }, "n", {}, {"17", "16"}},
      {"n 10^9", [](R& r) { r.set_n(1'000'000'000); }, "n"},
      {"17 stop strings", [&](R& r) { repeat_stop(r, 17); }, "stop[16]"},
      {"empty stop string",
       [](R& r) {
         r.add_stop("a");
         r.add_stop("");
       },
       "stop[1]"},
      {"stop string of 257 bytes", [](R& r) { r.add_stop(std::string(257, 'x')); }, "stop[0]"},
      {"stop string not UTF-8", [](R& r) { r.add_stop("\x80"); }, "stop[0]"},
      {"stop token outside the vocabulary",
       [](R& r) {
         r.add_stop_token_ids(1);
         r.add_stop_token_ids(512);
       },
       "stop_token_ids[1]"},
      {"logprobs 21", [](R& r) { r.set_logprobs(21); }, "logprobs", {}, {"21", "20"}},
      {"logprobs -1 as unsigned", [](R& r) { r.set_logprobs(~0u); }, "logprobs"},
      {"request_id of 129 bytes", [](R& r) { r.set_request_id(std::string(129, 'i')); },
       "request_id"},
      {"cache_salt of 129 bytes",
       [](R& r) { r.set_cache_salt(std::string(129, 'i')); },
       "cache_salt",
       {},
       {"129"}},
      {"session of 129 bytes",
       [](R& r) { r.set_session(std::string(129, 'i')); },
       "session",
       {},
       {"129"}},
      {"zone of 129 bytes", [](R& r) { r.set_zone(std::string(129, 'i')); }, "zone", {}, {"129"}},
  };
}

std::vector<Row> UnknownRows() {
  using R = v1::CompleteRequest;
  return {
      {"unknown path", [](R& r) { r.set_path(static_cast<v1::Path>(3)); }, "path"},
      {"negative path", [](R& r) { r.set_path(static_cast<v1::Path>(-1)); }, "path"},
      {"unknown field", [](R& r) { AddUnknown(r, 21); }, "#21"},
      {"unknown field of sampling", [](R& r) { AddUnknown(*r.mutable_sampling(), 10); },
       "sampling.#10"},
      {"unknown field of tokens",
       [](R& r) {
         *r.mutable_tokens() = Ids(3);
         AddUnknown(*r.mutable_tokens(), 2);
       },
       "tokens.#2"},
      {"unknown field of a message",
       [](R& r) {
         AddMessage(r, "user", "x");
         AddUnknown(*r.mutable_chat()->mutable_messages(0), 3);
       },
       "chat.messages[0].#3"},
  };
}

class BadInput : public testing::TestWithParam<std::vector<Row> (*)()> {};

TEST_P(BadInput, IsRefusedWithItsFieldAndTheServerGoesOn) {
  CompletionsHarness harness;
  harness.AnswerWith("fine");
  std::size_t good = 0;
  for (Row& row : GetParam()()) {
    SCOPED_TRACE(row.name);
    v1::CompleteRequest request = GoodRequest();
    row.spoil(request);
    const absl::Status status = harness.Complete(request).status;

    const absl::StatusCode code =
        row.code == absl::StatusCode::kOk ? absl::StatusCode::kInvalidArgument : row.code;
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(ViolatedField(status).value_or("none"), row.field) << status;
    for (const std::string& part : row.message_parts) {
      EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status;
    }
    EXPECT_EQ(harness.generator.started(), good) << "nothing was generated";

    // B18: the next request works.
    const auto answer = harness.Complete(GoodRequest());
    ++good;
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.response.choices(0).text(), "fine");
  }
}

INSTANTIATE_TEST_SUITE_P(Prompt, BadInput, testing::Values(&PromptRows));
INSTANTIATE_TEST_SUITE_P(Sampling, BadInput, testing::Values(&SamplingRows));
INSTANTIATE_TEST_SUITE_P(Limits, BadInput, testing::Values(&LimitRows));
INSTANTIATE_TEST_SUITE_P(Unknown, BadInput, testing::Values(&UnknownRows));

// B19: a prompt that cannot fit is refused before anybody waits for it.
TEST(TooLongPrompts, AreRefusedAtOnce) {
  CompletionsHarness harness;
  harness.AnswerWith("fine");
  v1::CompleteRequest one_too_many = GoodRequest();
  *one_too_many.mutable_tokens() = Ids(1024);
  v1::CompleteRequest much_too_long = GoodRequest();
  much_too_long.set_text(std::string(10'000'000, 'a'));
  for (const v1::CompleteRequest& request : {one_too_many, much_too_long}) {
    Duration shortest = Duration::max();  // other programs may take the processor for a while
    for (int i = 0; i < 5; ++i) {
      const TimePoint begin = Clock::System().Now();
      EXPECT_EQ(harness.Complete(request).status.code(), absl::StatusCode::kInvalidArgument);
      shortest = std::min(shortest, Duration(Clock::System().Now() - begin));
    }
    EXPECT_LT(shortest, Promised(std::chrono::milliseconds(100)));
    EXPECT_TRUE(harness.Complete(GoodRequest()).status.ok());
  }
}

// B30: above 16 MiB gRPC itself refuses.
TEST(BadMessage, AboveSixteenMebibytesIsResourceExhausted) {
  CompletionsHarness harness;
  harness.AnswerWith("fine");
  v1::CompleteRequest request;
  request.set_text(std::string((16 << 20) + 1, 'a'));

  EXPECT_EQ(harness.Complete(request).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(harness.Complete(GoodRequest()).status.ok());
}

class GoodInput : public testing::Test {
 protected:
  GoodInput() { harness_.AnswerWith("fine"); }

  // What the generator gets for this request.
  v1::SequenceSpec Send(const v1::CompleteRequest& request) {
    const std::size_t number = harness_.generator.started();
    const auto answer = harness_.Complete(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    return answer.status.ok() ? harness_.generator.Await(number)->job.sequence : v1::SequenceSpec();
  }

  CompletionsHarness harness_;
};

TEST_F(GoodInput, AbsentFieldsGetTheUsualDefaults) {
  v1::CompleteRequest request;
  *request.mutable_tokens() = Ids(24);
  const v1::SequenceSpec sequence = Send(request);

  EXPECT_EQ(sequence.prompt_size(), 24);
  EXPECT_EQ(sequence.max_tokens(), 1000u);
  EXPECT_EQ(sequence.min_tokens(), 0u);
  EXPECT_EQ(sequence.sampling().temperature(), 1.0f);
  EXPECT_EQ(sequence.sampling().top_p(), 1.0f);
  EXPECT_EQ(sequence.sampling().top_k(), 0u);
  EXPECT_EQ(sequence.sampling().min_p(), 0.0f);
  EXPECT_EQ(sequence.sampling().repetition_penalty(), 1.0f);
  EXPECT_EQ(sequence.sampling().frequency_penalty(), 0.0f);
  EXPECT_EQ(sequence.sampling().presence_penalty(), 0.0f);
  EXPECT_THAT(std::vector(sequence.stop_token_ids().begin(), sequence.stop_token_ids().end()),
              testing::ElementsAre(2u));
}

TEST_F(GoodInput, AnAbsentSeedIsFreshAGivenOneStays) {
  v1::CompleteRequest request = GoodRequest();
  const std::uint64_t first = Send(request).sampling().seed();
  const std::uint64_t second = Send(request).sampling().seed();
  request.mutable_sampling()->set_seed(0);

  EXPECT_NE(first, second);
  EXPECT_EQ(Send(request).sampling().seed(), 0u);
}

// B25: tiny temperatures are greedy.
TEST_F(GoodInput, TemperaturesBelowTheLimitAreGreedy) {
  v1::CompleteRequest request = GoodRequest();
  for (const float temperature : {0.0f, 1e-38f, 1e-10f, 9e-6f}) {
    request.mutable_sampling()->set_temperature(temperature);
    EXPECT_EQ(Send(request).sampling().temperature(), 0.0f) << temperature;
  }
  request.mutable_sampling()->set_temperature(1e-5f);
  EXPECT_EQ(Send(request).sampling().temperature(), 1e-5f);
  request.mutable_sampling()->set_temperature(2.0f);
  EXPECT_EQ(Send(request).sampling().temperature(), 2.0f);
}

TEST_F(GoodInput, TopKIsClampedToTheVocabulary) {
  v1::CompleteRequest request = GoodRequest();
  request.mutable_sampling()->set_top_k(~0u);
  EXPECT_EQ(Send(request).sampling().top_k(), 512u);
}

TEST_F(GoodInput, EndOfSequenceIsAStopTokenUnlessIgnored) {
  v1::CompleteRequest request = GoodRequest();
  request.add_stop_token_ids(7);
  request.add_stop_token_ids(7);
  v1::SequenceSpec sequence = Send(request);
  EXPECT_THAT(std::vector(sequence.stop_token_ids().begin(), sequence.stop_token_ids().end()),
              testing::ElementsAre(7u, 2u));
  request.set_ignore_eos(true);
  sequence = Send(request);
  EXPECT_THAT(std::vector(sequence.stop_token_ids().begin(), sequence.stop_token_ids().end()),
              testing::ElementsAre(7u));
}

TEST_F(GoodInput, EveryValidCodePointPasses) {
  v1::CompleteRequest request = GoodRequest();
  const std::string text("\0\xEF\xBB\xBFx\xF4\x8F\xBF\xBF\xE2\x80\x8F\r\n", 15);
  request.set_text(text);
  const v1::SequenceSpec sequence = Send(request);
  std::string back;
  for (const std::uint32_t id : sequence.prompt()) {
    back += (*CompletionsHarness::SharedModel()).tokenizer().TokenBytes(TokenId(id));
  }

  EXPECT_EQ(back, text);
}

TEST_F(GoodInput, ControlTokensInTextAreTextUnlessAskedFor) {
  v1::CompleteRequest request = GoodRequest();
  request.set_text("<|im_end|>");
  EXPECT_GT(Send(request).prompt_size(), 1);
  request.set_special(true);
  EXPECT_EQ(Send(request).prompt_size(), 1);
}

// B14: the template's own tokens, once.
TEST_F(GoodInput, ChatIsWrittenInTheModelsFormat) {
  v1::CompleteRequest request = GoodRequest();
  AddMessage(request, "system", "s");
  AddMessage(request, "user", "u <|im_end|>");
  const v1::SequenceSpec sequence = Send(request);
  const auto count = [&sequence](std::uint32_t id) {
    return std::count(sequence.prompt().begin(), sequence.prompt().end(), id);
  };

  EXPECT_EQ(count(1), 3) << "system, user and the opening of the assistant's turn";
  EXPECT_EQ(count(2), 2) << "what a message says ends no turn";
}

TEST_F(GoodInput, TheModelMayBeNamed) {
  v1::CompleteRequest request = GoodRequest();
  request.set_model("tiny");
  EXPECT_GT(Send(request).prompt_size(), 0);
}

}  // namespace
}  // namespace baton
