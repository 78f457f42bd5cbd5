// What a client gets of several choices, of log probabilities and of an echoed prompt.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/match.h"
#include "common/utf8.h"
#include "frontend/completions_service.h"
#include "tests/frontend/completions_harness.h"
#include "tests/frontend/stream_call.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::string kHi = "\xE4\xBD\xA0\xE5\xA5\xBD";  // two characters of three bytes

using Alternatives = std::vector<std::pair<std::uint32_t, float>>;

v1::TokenLogprob Entry(std::uint32_t id, float logprob, const Alternatives& alternatives = {}) {
  v1::TokenLogprob entry;
  entry.set_id(id);
  entry.set_logprob(logprob);
  for (const auto& [other, value] : alternatives) {
    v1::TokenLogprob::Alternative& alternative = *entry.add_alternatives();
    alternative.set_id(other);
    alternative.set_logprob(value);
  }
  return entry;
}

// A token whose log probability tells which one it is.
GeneratedToken WithLogprob(TokenId id, float logprob, std::uint32_t choice = 0) {
  return {.id = id, .choice = choice, .logprob = Entry(id.value(), logprob)};
}

std::vector<std::pair<std::uint32_t, float>> Pairs(const v1::Logprobs& logprobs) {
  std::vector<std::pair<std::uint32_t, float>> pairs;
  for (const v1::TokenLogprob& token : logprobs.tokens()) {
    pairs.emplace_back(token.id(), token.logprob());
  }
  return pairs;
}

// What a stream says, put together as Complete does.
v1::CompleteResponse Together(const std::vector<v1::CompleteChunk>& chunks, int choices) {
  v1::CompleteResponse response;
  for (int i = 0; i < choices; ++i) {
    response.add_choices()->set_index(static_cast<std::uint32_t>(i));
  }
  for (const v1::CompleteChunk& chunk : chunks) {
    v1::Choice& choice = *response.mutable_choices(static_cast<int>(chunk.choice().index()));
    EXPECT_EQ(choice.finish_reason(), v1::FINISH_REASON_UNSPECIFIED) << "after its end";
    EXPECT_EQ(FindInvalidUtf8(chunk.choice().text()), std::nullopt) << "B2, B3";
    EXPECT_EQ(chunk.choice().has_logprobs() ? chunk.choice().logprobs().tokens_size() : 0,
              chunk.choice().has_logprobs() ? chunk.choice().token_ids_size() : 0);
    choice.mutable_text()->append(chunk.choice().text());
    choice.mutable_token_ids()->MergeFrom(chunk.choice().token_ids());
    if (chunk.choice().has_logprobs()) {
      choice.mutable_logprobs()->MergeFrom(chunk.choice().logprobs());
    }
    choice.set_finish_reason(chunk.choice().finish_reason());
    choice.set_stop_match(chunk.choice().stop_match());
    EXPECT_EQ(chunk.has_usage(), &chunk == &chunks.back());
    EXPECT_EQ(chunk.has_timeline(), &chunk == &chunks.back());
    *response.mutable_usage() = chunk.usage();
  }
  return response;
}

void ExpectSameChoices(const v1::CompleteResponse& a, const v1::CompleteResponse& b) {
  ASSERT_EQ(a.choices_size(), b.choices_size());
  for (int i = 0; i < a.choices_size(); ++i) {
    EXPECT_EQ(a.choices(i).SerializeAsString(), b.choices(i).SerializeAsString()) << i;
  }
  EXPECT_EQ(a.usage().SerializeAsString(), b.usage().SerializeAsString());
}

v1::CompleteRequest RequestFor(std::uint32_t choices) {
  v1::CompleteRequest request = Request();
  request.set_n(choices);
  return request;
}

class ChoicesTest : public testing::Test {
 protected:
  // The same by both calls.
  v1::CompleteResponse Complete(const v1::CompleteRequest& request) {
    const auto answer = harness_.Complete(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    Stream stream(harness_, request);
    const std::vector<v1::CompleteChunk> chunks = stream.ReadAll();
    EXPECT_TRUE(stream.Finish().ok());
    ExpectSameChoices(answer.response, Together(chunks, answer.response.choices_size()));
    return answer.response;
  }

  void Play(std::function<void(FakeGenerator::Fake&)> script) {
    harness_.generator.on_start = std::move(script);
  }

  CompletionsHarness harness_;
};

TEST_F(ChoicesTest, EachHasItsOwnTextTokensAndEnd) {
  Play([](FakeGenerator::Fake& fake) {
    const std::vector<TokenId> hi = CompletionsHarness::ByteTokens(kHi);
    for (std::size_t i = 0; i < hi.size(); ++i) {  // characters of two choices cut into each other
      fake.Token(hi[i], 2);
      fake.Token(hi[hi.size() / 2 + i % 3], 0);
    }
    fake.EndChoice(2, v1::FINISH_REASON_STOP);
    fake.Tokens(CompletionsHarness::ByteTokens("one"), 1);
    fake.EndChoice(0, v1::FINISH_REASON_LENGTH);
    fake.Finish(v1::FINISH_REASON_LENGTH);
  });
  const v1::CompleteResponse response = Complete(RequestFor(3));

  ASSERT_EQ(response.choices_size(), 3);
  EXPECT_EQ(response.choices(0).text(), kHi.substr(3) + kHi.substr(3));
  EXPECT_EQ(response.choices(1).text(), "one");
  EXPECT_EQ(response.choices(2).text(), kHi);
  EXPECT_EQ(response.choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(response.choices(1).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(response.choices(2).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(response.usage().completion_tokens(), 6u + 3u + 6u);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(response.choices(static_cast<int>(i)).index(), i);
  }
  EXPECT_EQ(harness_.generator.Await(0)->job.choices, 3u);
}

TEST_F(ChoicesTest, OneIsTheDefault) {
  harness_.AnswerWith("x");

  EXPECT_EQ(Complete(Request()).choices_size(), 1);
  EXPECT_EQ(Complete(RequestFor(1)).choices_size(), 1);
  EXPECT_EQ(harness_.generator.Await(0)->job.choices, 1u);
  EXPECT_EQ(harness_.Complete(RequestFor(17)).status.code(), absl::StatusCode::kInvalidArgument);
}

// B8 to B10 for each choice by itself: one meets a stop string, the others go on.
TEST_F(ChoicesTest, EachHasItsOwnStopString) {
  Play([](FakeGenerator::Fake& fake) {
    fake.Tokens(CompletionsHarness::ByteTokens("ab EN"), 0);
    fake.Tokens(CompletionsHarness::ByteTokens("cd END of it"), 1);
    fake.EndChoice(1, v1::FINISH_REASON_STOP);
    fake.Tokens(CompletionsHarness::ByteTokens("OUGH"), 0);
    fake.Finish(v1::FINISH_REASON_LENGTH);
  });
  v1::CompleteRequest request = RequestFor(2);
  request.add_stop("END");
  const v1::CompleteResponse response = Complete(request);

  EXPECT_EQ(response.choices(0).text(), "ab ENOUGH");
  EXPECT_EQ(response.choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(response.choices(0).stop_match(), "");
  EXPECT_EQ(response.choices(1).text(), "cd ");
  EXPECT_EQ(response.choices(1).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(response.choices(1).stop_match(), "END");
  EXPECT_EQ(response.choices(1).token_ids_size(), 6) << "none after the stop string";
  EXPECT_EQ(response.usage().completion_tokens(), 9u + 6u);
  EXPECT_THAT(harness_.generator.Await(0)->job.stop, ElementsAre("END"));
}

// Nothing that the client wants is missing any more.
TEST_F(ChoicesTest, OnceAllTextHasStoppedNoFailureCounts) {
  Play([](FakeGenerator::Fake& fake) {
    fake.Tokens(CompletionsHarness::ByteTokens("a."), 1);
    fake.Tokens(CompletionsHarness::ByteTokens("b."), 0);
    fake.Fail(absl::UnavailableError("the worker died"));
  });
  v1::CompleteRequest request = RequestFor(2);
  request.add_stop(".");
  const v1::CompleteResponse response = Complete(request);

  EXPECT_EQ(response.choices(0).text(), "b");
  EXPECT_EQ(response.choices(1).text(), "a");
  EXPECT_EQ(response.choices(0).stop_match(), ".");
  EXPECT_EQ(response.choices(1).finish_reason(), v1::FINISH_REASON_STOP);
}

TEST_F(ChoicesTest, AFailureOfOneFailsTheRequest) {
  Play([](FakeGenerator::Fake& fake) {
    fake.Tokens(CompletionsHarness::ByteTokens("done"), 1);
    fake.EndChoice(1, v1::FINISH_REASON_STOP);
    fake.Fail(absl::UnavailableError("the worker died"));
  });

  EXPECT_EQ(harness_.Complete(RequestFor(2)).status.code(), absl::StatusCode::kUnavailable);
}

// A generator that breaks its promises ends as a bug, never as a wrong answer.
TEST_F(ChoicesTest, NonsenseOfTheGeneratorIsInternal) {
  const std::vector<std::function<void(FakeGenerator::Fake&)>> nonsense = {
      [](auto& fake) { fake.Token(TokenId(70), 2); },
      [](auto& fake) {
        fake.EndChoice(1, v1::FINISH_REASON_STOP);
        fake.Token(TokenId(70), 1);
      },
      [](auto& fake) {
        fake.EndChoice(1, v1::FINISH_REASON_STOP);
        fake.EndChoice(1, v1::FINISH_REASON_STOP);
      },
      [](auto& fake) { fake.EndChoice(2, v1::FINISH_REASON_STOP); },
      [](auto& fake) { fake.EndChoice(0, v1::FINISH_REASON_UNSPECIFIED); },
      [](auto& fake) { fake.Finish(v1::FINISH_REASON_STOP); },
      [](auto& fake) { fake.Token(WithLogprob(TokenId(70), -1)); },
      [](auto& fake) { fake.Token(TokenId(512)); },
  };
  for (std::size_t i = 0; i < nonsense.size(); ++i) {
    Play([&](FakeGenerator::Fake& fake) { nonsense[i](fake); });
    EXPECT_EQ(harness_.Complete(RequestFor(2)).status.code(), absl::StatusCode::kInternal) << i;
  }
}

class LogprobsTest : public ChoicesTest {
 protected:
  static v1::CompleteRequest RequestWith(std::uint32_t logprobs, bool echo = false) {
    v1::CompleteRequest request = Request("abc");
    request.mutable_tokens()->add_ids(3 + 'a');
    request.mutable_tokens()->add_ids(3 + 'b');
    request.mutable_tokens()->add_ids(3 + 'c');
    request.set_logprobs(logprobs);
    request.set_echo(echo);
    return request;
  }

  // Of the prompt of RequestWith.
  static v1::Logprobs OfPrompt() {
    v1::Logprobs logprobs;
    *logprobs.add_tokens() = Entry(3 + 'b', -2, {{9, -1}, {3 + 'b', -2}});
    *logprobs.add_tokens() = Entry(3 + 'c', -3, {{9, -1}, {8, -kInfinity}});
    return logprobs;
  }
};

// B2, B3: text is held back for characters and stop strings, tokens and log probabilities are not.
TEST_F(LogprobsTest, AreAlignedWithTheTokensWhateverTheText) {
  const std::string text = "a" + kHi + "b STOP";
  Play([&](FakeGenerator::Fake& fake) {
    float logprob = 0;
    for (const TokenId id : CompletionsHarness::ByteTokens(text + " more")) {
      fake.Token(WithLogprob(id, logprob -= 1));
    }
    fake.Finish(v1::FINISH_REASON_STOP);
  });
  v1::CompleteRequest request = RequestWith(0);
  request.add_stop("STOP");
  const v1::CompleteResponse response = Complete(request);
  const v1::Choice& choice = response.choices(0);

  EXPECT_EQ(choice.text(), "a" + kHi + "b ");
  ASSERT_EQ(choice.token_ids_size(), static_cast<int>(text.size()));
  ASSERT_EQ(choice.logprobs().tokens_size(), choice.token_ids_size());
  for (int i = 0; i < choice.token_ids_size(); ++i) {
    EXPECT_EQ(choice.logprobs().tokens(i).id(), choice.token_ids(i)) << i;
    EXPECT_EQ(choice.logprobs().tokens(i).logprob(), -1.0f - static_cast<float>(i)) << i;
  }
}

// B29.
TEST_F(LogprobsTest, AreAlwaysFinite) {
  Play([](FakeGenerator::Fake& fake) {
    fake.Token({.id = TokenId(70),
                .logprob = Entry(70, -kInfinity, {{71, -0.5f}, {72, kNan}, {73, -kInfinity}})});
    fake.Finish(v1::FINISH_REASON_LENGTH);
  });
  const v1::CompleteResponse response = Complete(RequestWith(3));

  const v1::TokenLogprob& token = response.choices(0).logprobs().tokens(0);
  EXPECT_EQ(token.logprob(), -9999);
  EXPECT_EQ(token.alternatives(0).logprob(), -0.5f);
  EXPECT_EQ(token.alternatives(1).logprob(), -9999);
  EXPECT_EQ(token.alternatives(2).logprob(), -9999);
}

TEST_F(LogprobsTest, AreAskedForOfTheGenerator) {
  harness_.generator.on_start = [](FakeGenerator::Fake& fake) {
    fake.Fail(absl::UnavailableError("enough"));
  };
  v1::CompleteRequest request = RequestWith(20);
  request.set_cache_salt(std::string(128, '\xFF'));
  harness_.Complete(request);
  request.set_echo(true);
  harness_.Complete(request);
  request.clear_logprobs();
  harness_.Complete(request);

  const auto sequence = [this](std::size_t i) { return harness_.generator.Await(i)->job.sequence; };
  EXPECT_EQ(sequence(0).logprobs(), 20u);
  EXPECT_FALSE(sequence(0).prompt_logprobs());
  EXPECT_EQ(sequence(0).cache_salt(), std::string(128, '\xFF'));
  EXPECT_TRUE(sequence(1).prompt_logprobs());
  EXPECT_FALSE(sequence(2).has_logprobs());
  EXPECT_FALSE(sequence(2).prompt_logprobs());
}

TEST_F(LogprobsTest, OfAnEchoedPromptComeInFrontOfEveryChoice) {
  Play([](FakeGenerator::Fake& fake) {
    fake.PromptLogprobs(OfPrompt());
    fake.Token(WithLogprob(TokenId(3 + 'x'), -4, 0));
    fake.Token(WithLogprob(TokenId(3 + 'y'), -5, 1));
    fake.EndChoice(0, v1::FINISH_REASON_LENGTH);
    fake.Finish(v1::FINISH_REASON_LENGTH);
  });
  v1::CompleteRequest request = RequestWith(2, /*echo=*/true);
  request.set_n(2);
  const v1::CompleteResponse response = Complete(request);

  EXPECT_EQ(response.choices(0).text(), "abcx");
  EXPECT_EQ(response.choices(1).text(), "abcy");
  EXPECT_THAT(Pairs(response.choices(0).logprobs()),
              ElementsAre(Pair(3 + 'a', 0.0f), Pair(3 + 'b', -2.0f), Pair(3 + 'c', -3.0f),
                          Pair(3 + 'x', -4.0f)));
  const v1::Logprobs& second = response.choices(1).logprobs();
  EXPECT_EQ(Pairs(second).back(), (std::pair<std::uint32_t, float>(3 + 'y', -5.0f)));
  EXPECT_EQ(second.tokens(0).alternatives_size(), 0) << "nothing precedes the first token";
  EXPECT_EQ(second.tokens(1).alternatives(0).id(), 9u);
  EXPECT_EQ(second.tokens(2).alternatives(1).logprob(), -9999) << "B29";
  EXPECT_EQ(response.usage().prompt_tokens(), 3u);
  EXPECT_EQ(response.usage().completion_tokens(), 2u) << "echo does not count";
}

TEST_F(LogprobsTest, ThatDoNotComeAreInternal) {
  const std::vector<std::function<void(FakeGenerator::Fake&)>> nonsense = {
      [](auto& fake) { fake.Token(WithLogprob(TokenId(70), -1)); },  // none of the prompt
      [](auto& fake) {
        v1::Logprobs too_few = OfPrompt();
        too_few.mutable_tokens()->RemoveLast();
        fake.PromptLogprobs(too_few);
        fake.Token(WithLogprob(TokenId(70), -1));
      },
      [](auto& fake) {
        fake.PromptLogprobs(OfPrompt());
        fake.Token(TokenId(70));
      },
  };
  for (std::size_t i = 0; i < nonsense.size(); ++i) {
    Play([&](FakeGenerator::Fake& fake) { nonsense[i](fake); });
    EXPECT_EQ(harness_.Complete(RequestWith(0, /*echo=*/true)).status.code(),
              absl::StatusCode::kInternal)
        << i;
  }
}

class EchoTest : public ChoicesTest {
 protected:
  EchoTest() { harness_.AnswerWith("answer"); }

  static v1::CompleteRequest EchoOf(const std::string& text) {
    v1::CompleteRequest request = Request(text);
    request.set_echo(true);
    return request;
  }
};

TEST_F(EchoTest, IsThePromptAndThenTheAnswer) {
  const std::string text = "caf\u00e9 \U0001F600 <|im_end|>\n";
  for (const bool special : {false, true}) {
    v1::CompleteRequest request = EchoOf(text);
    request.set_special(special);
    const v1::CompleteResponse response = Complete(request);

    const v1::SequenceSpec& sequence = harness_.generator.Await(0)->job.sequence;
    EXPECT_EQ(response.choices(0).text(), text + "answer");
    EXPECT_EQ(response.usage().completion_tokens(), 6u);
    if (!special) {
      EXPECT_EQ(response.choices(0).token_ids_size(), sequence.prompt_size() + 6);
      EXPECT_TRUE(std::equal(sequence.prompt().begin(), sequence.prompt().end(),
                             response.choices(0).token_ids().begin()));
    }
    EXPECT_FALSE(response.choices(0).has_logprobs());
  }
}

TEST_F(EchoTest, OfAChatIsWhatTheModelWasGiven) {
  v1::CompleteRequest request = EchoOf("");
  v1::Message& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("hello");
  const std::string text = Complete(request).choices(0).text();

  EXPECT_TRUE(absl::StartsWith(text, "<|im_start|>")) << text;
  EXPECT_NE(text.find("user\nhello<|im_end|>"), std::string::npos) << text;
  EXPECT_TRUE(absl::EndsWith(text, "assistant\nanswer")) << text;
}

// The two texts are put together, not the tokens: echo changes nothing of the answer.
TEST_F(EchoTest, OfHalfACharacterLeavesTheAnswerAsItIs) {
  v1::CompleteRequest request = EchoOf("");
  request.mutable_tokens()->add_ids(3 + 'a');
  request.mutable_tokens()->add_ids(3 + 0xE4);
  EXPECT_EQ(Complete(request).choices(0).text(), "a\uFFFDanswer");
}

TEST_F(EchoTest, IsNotSearchedForStopStrings) {
  v1::CompleteRequest request = EchoOf("what is an answ");
  request.add_stop("an ");
  request.add_stop("wan");
  request.add_stop("er");
  const v1::CompleteResponse response = Complete(request);

  EXPECT_EQ(response.choices(0).text(), "what is an answansw");
  EXPECT_EQ(response.choices(0).stop_match(), "er");
}

// However long the prompt is, a chunk stays far below the 4 MiB that gRPC clients take by default.
TEST_F(EchoTest, OfALongPromptComesInSeveralChunks) {
  v1::CompleteRequest request = EchoOf("");
  request.mutable_tokens()->mutable_ids()->Resize(900, 3 + 'z');
  Stream stream(harness_, request);
  const std::vector<v1::CompleteChunk> chunks = stream.ReadAll();

  ASSERT_TRUE(stream.Finish().ok());
  EXPECT_EQ(Together(chunks, 1).choices(0).text(), std::string(900, 'z') + "answer");
  for (const v1::CompleteChunk& chunk : chunks) {
    EXPECT_LE(chunk.choice().token_ids_size(), 256);
  }
}

}  // namespace
}  // namespace baton
