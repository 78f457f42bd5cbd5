// Several choices of one prompt, stop strings and log probabilities in the decode worker.

#include <gtest/gtest.h>

#include <set>

#include "decode_worker/choice_seed.h"
#include "tests/decode_worker/two_sided_sessions.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

// Written down: a choice keeps its tokens from one version to the next.
static_assert(ChoiceSeed(7, 0) == 7);
static_assert(ChoiceSeed(0, 1) == 0xE220A8397B1DCDAF, "the first number of SplitMix64 from 0");
static_assert(ChoiceSeed(0, 2) == 0x6E789E6AA1B965F4);
static_assert(ChoiceSeed(~0ull, 15) != ChoiceSeed(~0ull, 14));

class DecodeChoicesTest : public DecodeSessionsTest {
 protected:
  DecodeJob Seeded(int prompt_tokens, int max_tokens, std::uint32_t choices) {
    DecodeJob job = MakeJob(prompt_tokens, max_tokens, /*seed=*/3);
    job.choices = choices;
    return job;
  }

  // The tokens of choice `choice` when it is asked for alone, and colocated.
  std::vector<std::uint32_t> Alone(DecodeJob job, std::uint32_t choice) {
    job.choices = 1;
    job.prefill.clear();
    job.sequence.mutable_sampling()->set_seed(ChoiceSeed(job.sequence.sampling().seed(), choice));
    const auto observer = decode_.Start(std::move(job));
    EXPECT_TRUE(observer->WaitForEnd().ok());
    return observer->tokens();
  }

  void ExpectChoices(const DecodeJob& job, RecordingObserver& observer) {
    for (std::uint32_t i = 0; i < job.choices; ++i) {
      EXPECT_EQ(observer.tokens(i), Alone(job, i)) << "choice " << i;
    }
  }

  std::string TextOf(const std::vector<std::uint32_t>& tokens) {
    const Tokenizer& tokenizer = decode_.core->checkpoint().tokenizer();
    std::string text;
    for (const std::uint32_t token : tokens) {
      text += tokenizer.TokenBytes(TokenId(token));
    }
    return text;
  }
};

// B27, B42.
TEST_F(DecodeChoicesTest, AreWhatTheyAreAloneByBothPaths) {
  for (const int max_tokens : {1, 2, 20}) {
    for (const int length : {1, 16, 17, 300}) {
      SCOPED_TRACE(absl::StrCat("max_tokens ", max_tokens, ", prompt tokens: ", length));
      DecodeJob job = Seeded(length, max_tokens, 4);
      const auto colocated = decode_.Start(job);
      EXPECT_TRUE(colocated->WaitForEnd().ok());
      ExpectChoices(job, *colocated);
      job.prefill = {prefill_.candidate()};
      job.forced = true;
      const auto split = decode_.Start(job);
      EXPECT_TRUE(split->WaitForEnd().ok());
      ExpectChoices(job, *split);
      EXPECT_TRUE(split->result().finished.split());
    }
  }
  ExpectAllFree();
}

// B42, T22: one token each, and the prompt is computed by the prefill worker alone.
TEST_F(DecodeChoicesTest, OfOneTokenShareTheKvThatComes) {
  DecodeJob job = Seeded(330, 1, 3);
  job.prefill = {prefill_.candidate()};
  job.forced = true;
  DecodeNode caching(model_.file(), inproc::MakeTransport(hub_), {},
                     {.kv_pool_bytes = kTestPoolBytes});
  const auto observer = caching.Start(job);
  EXPECT_TRUE(observer->WaitForEnd().ok());

  EXPECT_TRUE(AllBlocksFree(*caching.core));
  EXPECT_LE(caching.core->engine().load().prefilled_tokens, 2u * kBlockTokens);
  ExpectChoices(job, *observer);
  ExpectAllFree();
}

// All ends but the last are told as they come, and the last one by the result.
TEST_F(DecodeChoicesTest, EveryEndIsToldOnce) {
  DecodeJob job = Seeded(50, 10, 3);
  const auto observer = decode_.Start(job);
  EXPECT_TRUE(observer->WaitForEnd().ok());
  int told = 0;
  for (std::uint32_t i = 0; i < 3; ++i) {
    told += observer->choice_end(i).has_value() ? 1 : 0;
    EXPECT_EQ(observer->choice_end(i).value_or(v1::FINISH_REASON_LENGTH), v1::FINISH_REASON_LENGTH);
  }
  EXPECT_EQ(told, 2);
  EXPECT_EQ(observer->result().finished.finish_reason(), v1::FINISH_REASON_LENGTH);
  ExpectAllFree();
}

// Nobody has to cancel: the worker looks for the stop strings itself.
TEST_F(DecodeChoicesTest, AStopStringEndsAChoice) {
  DecodeJob job = Seeded(60, 400, 3);
  std::vector<std::string> texts;
  for (std::uint32_t i = 0; i < 3; ++i) {
    texts.push_back(TextOf(Alone(job, i)));
  }
  // Of the text's bytes, taken where they are plain ASCII: a stop string is UTF-8.
  std::size_t at = 20;
  while (!std::all_of(&texts[1][at], &texts[1][at + 3], [](char c) { return c > 0; })) {
    ++at;
  }
  job.stop = {texts[1].substr(at, 3)};
  const auto observer = decode_.Start(job);
  EXPECT_TRUE(observer->WaitForEnd().ok());

  for (std::uint32_t i = 0; i < 3; ++i) {
    const std::string text = TextOf(observer->tokens(i));
    EXPECT_EQ(texts[i].substr(0, text.size()), text);
    const std::size_t found = texts[i].find(job.stop[0]);
    if (found == std::string::npos) {
      EXPECT_EQ(observer->tokens(i).size(), 400u);
    } else {
      EXPECT_GE(text.size(), found + 3) << "with the token that completes it";
      EXPECT_LT(text.size(), found + 3 + 16) << "and none after";
      EXPECT_EQ(observer->choice_end(i).value_or(observer->result().finished.finish_reason()),
                v1::FINISH_REASON_STOP);
    }
  }
  EXPECT_NE(texts[1].find(job.stop[0]), std::string::npos);
  ExpectAllFree();
}

// The first token of the leader completes the stop string: the others still get its blocks.
TEST_F(DecodeChoicesTest, ALeaderThatStopsAtOnceLeavesTheOthersItsBlocks) {
  DecodeJob job = Seeded(400, 30, 3);
  std::uint64_t seed = 0;
  std::string stop;
  for (; stop.empty(); ++seed) {
    job.sequence.mutable_sampling()->set_seed(seed);
    const std::string first = TextOf({Alone(job, 0)[0]});
    stop = !first.empty() && std::all_of(first.begin(), first.end(), [](char c) { return c > 0; })
               ? first
               : "";
  }
  job.stop = {stop};
  for (const bool split : {false, true}) {
    job.prefill.clear();
    if (split) {
      job.prefill = {prefill_.candidate()};
    }
    job.forced = split;
    const std::uint64_t before = decode_.core->engine().load().prefilled_tokens;
    const auto observer = decode_.Start(job);
    EXPECT_TRUE(observer->WaitForEnd().ok());

    EXPECT_EQ(observer->tokens(0).size(), 1u);
    EXPECT_EQ(observer->choice_end(0), v1::FINISH_REASON_STOP);
    EXPECT_GE(observer->tokens(1).size(), 1u);
    EXPECT_LT(decode_.core->engine().load().prefilled_tokens - before, 2u * 400u);
  }
  ExpectAllFree();
}

TEST_F(DecodeChoicesTest, CancellationAtAnyMomentEndsAll) {
  for (int delay_ms = 0; delay_ms < 30; delay_ms += 3) {
    for (const bool split : {false, true}) {
      DecodeJob job = Seeded(1000, 2000, 4);
      if (split) {
        job.prefill = {prefill_.candidate()};
      }
      ExpectFreeAfterCancelling(std::move(job), milliseconds(delay_ms));
    }
  }
}

// A choice that the engine refuses takes the others with it.
TEST_F(DecodeChoicesTest, ARefusedChoiceEndsTheRequest) {
  DecodeJob job = Seeded(50, 20, 17);
  EXPECT_EQ(decode_.Start(job)->WaitForEnd().code(), absl::StatusCode::kInvalidArgument);
  job.choices = 3;
  job.sequence.set_max_tokens(100'000);  // beyond the context
  EXPECT_EQ(decode_.Start(job)->WaitForEnd().code(), absl::StatusCode::kInvalidArgument);
  job = Seeded(50, 20, 3);
  job.deadline = Clock::System().Now();
  EXPECT_EQ(decode_.Start(job)->WaitForEnd().code(), absl::StatusCode::kDeadlineExceeded);
  ExpectAllFree();
}

class DecodeLogprobsTest : public DecodeChoicesTest {
 protected:
  static DecodeJob WithLogprobs(DecodeJob job) {
    job.sequence.set_logprobs(3);
    job.sequence.set_prompt_logprobs(true);
    return job;
  }

  static void ExpectSame(RecordingObserver& a, RecordingObserver& b, const DecodeJob& job) {
    ASSERT_TRUE(a.prompt_logprobs().has_value() && b.prompt_logprobs().has_value());
    EXPECT_EQ(a.prompt_logprobs()->tokens_size(), job.sequence.prompt_size() - 1);
    EXPECT_EQ(a.prompt_logprobs()->SerializeAsString(), b.prompt_logprobs()->SerializeAsString());
    for (std::uint32_t i = 0; i < job.choices; ++i) {
      ASSERT_EQ(a.logprobs(i).size(), a.tokens(i).size());
      ASSERT_EQ(b.logprobs(i).size(), a.logprobs(i).size());
      for (std::size_t k = 0; k < a.logprobs(i).size(); ++k) {
        EXPECT_EQ(a.logprobs(i)[k].SerializeAsString(), b.logprobs(i)[k].SerializeAsString());
        EXPECT_EQ(a.logprobs(i)[k].id(), a.tokens(i)[k]);
        EXPECT_EQ(a.logprobs(i)[k].alternatives_size(), 3);
      }
    }
  }
};

TEST_F(DecodeLogprobsTest, AreTheSameByBothPaths) {
  for (const int length : {1, 16, 17, 300}) {
    for (const int max_tokens : {1, 12}) {
      DecodeJob job = WithLogprobs(Seeded(length, max_tokens, 2));
      const auto colocated = decode_.Start(job);
      EXPECT_TRUE(colocated->WaitForEnd().ok());
      job.prefill = {prefill_.candidate()};
      job.forced = true;
      const auto split = decode_.Start(job);
      EXPECT_TRUE(split->WaitForEnd().ok());
      ExpectSame(*colocated, *split, job);
    }
  }
  ExpectAllFree();
}

// A prefill worker whose first token lacks what was asked for is given up, before anything of it is
// told.
TEST_F(DecodeLogprobsTest, AFirstTokenWithoutThemIsAFailure) {
  ScriptedPrefill lacking([this](grpc::ServerContext&, const v1::PrefillRequest& request,
                                 grpc::ServerWriter<v1::PrefillEvent>& writer) {
    EXPECT_EQ(request.sequence().logprobs(), 3u);
    EXPECT_TRUE(request.sequence().prompt_logprobs());
    v1::PrefillEvent event;
    event.mutable_accepted()->set_instance_id(std::string(prefill_.core->instance().AsBytes()));
    event.mutable_accepted()->set_kv_address("inproc:999");
    writer.Write(event);
    event.mutable_first_token()->set_token(7);
    event.mutable_first_token()->mutable_logprob()->set_id(7);
    writer.Write(event);
    return grpc::Status::OK;
  });
  DecodeJob job = WithLogprobs(Seeded(100, 8, 2));
  const auto expected = decode_.Start(job);
  EXPECT_TRUE(expected->WaitForEnd().ok());
  job.prefill = {lacking.candidate(), prefill_.candidate()};
  const auto observer = decode_.Start(job);
  EXPECT_TRUE(observer->WaitForEnd().ok());
  ExpectSame(*expected, *observer, job);
  EXPECT_EQ(observer->result().finished.prefill_worker(), prefill_.served.address());
  ExpectAllFree();
}

// What gRPC refuses by default, 4 MiB in one message, is a long prompt's log probabilities.
TEST_F(DecodeLogprobsTest, MayTakeManyMebibytes) {
  ScriptedPrefill large([this](grpc::ServerContext&, const v1::PrefillRequest& request,
                               grpc::ServerWriter<v1::PrefillEvent>& writer) {
    v1::PrefillEvent event;
    event.mutable_accepted()->set_instance_id(std::string(prefill_.core->instance().AsBytes()));
    writer.Write(event);
    v1::PrefillEvent::FirstToken& first = *event.mutable_first_token();
    first.set_token(7);
    first.mutable_logprob()->set_id(7);
    for (int i = 1; i < request.sequence().prompt_size(); ++i) {
      v1::TokenLogprob& token = *first.mutable_prompt_logprobs()->add_tokens();
      for (std::uint32_t k = 0; k < 1000; ++k) {
        v1::TokenLogprob::Alternative& alternative = *token.add_alternatives();
        alternative.set_id(k);
        alternative.set_logprob(-1);
      }
    }
    EXPECT_GT(event.ByteSizeLong(), std::size_t{4} << 20);
    writer.Write(event);
    return grpc::Status::OK;
  });
  DecodeJob job = WithLogprobs(Seeded(600, 1, 1));
  job.prefill = {large.candidate()};
  job.forced = true;
  const auto observer = decode_.Start(job);
  EXPECT_TRUE(observer->WaitForEnd().ok());
  EXPECT_EQ(observer->prompt_logprobs()->tokens_size(), 599);
  ExpectAllFree();
}

// A real handoff whose first token never comes: its blocks land, and the call ends. What landed
// says nothing about the prompt's log probabilities, so all of it is computed again.
TEST_F(DecodeLogprobsTest, BlocksWithoutAFirstTokenAreOfNoUse) {
  const auto real = v1::PrefillWorker::NewStub(
      grpc::CreateChannel(prefill_.served.address(), grpc::InsecureChannelCredentials()));
  ScriptedPrefill swallowing([&real](grpc::ServerContext& context,
                                     const v1::PrefillRequest& request,
                                     grpc::ServerWriter<v1::PrefillEvent>& writer) {
    const auto inner_context = grpc::ClientContext::FromServerContext(context);
    const auto reader = real->Prefill(inner_context.get(), request);
    for (v1::PrefillEvent event; reader->Read(&event);) {
      if (event.has_accepted()) {
        writer.Write(event);
      }
    }
    return reader->Finish();
  });
  for (const bool forced : {false, true}) {
    DecodeJob job = WithLogprobs(Seeded(300, 8, 2));
    const auto expected = decode_.Start(job);
    EXPECT_TRUE(expected->WaitForEnd().ok());
    job.prefill = {swallowing.candidate()};
    if (forced) {
      job.prefill.push_back(prefill_.candidate());
    }
    job.forced = forced;
    const auto observer = decode_.Start(job);
    EXPECT_TRUE(observer->WaitForEnd().ok());
    ExpectSame(*expected, *observer, job);
    EXPECT_EQ(observer->result().finished.split(), forced);
  }
  ExpectAllFree();
}

}  // namespace
}  // namespace baton
