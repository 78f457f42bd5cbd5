#include "frontend/completions_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/utf8.h"
#include "tests/frontend/completions_harness.h"
#include "tests/frontend/stream_call.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;

std::string TextOf(const std::vector<v1::CompleteChunk>& chunks) {
  std::string text;
  for (const v1::CompleteChunk& chunk : chunks) {
    text += chunk.choice().text();
  }
  return text;
}

std::vector<TokenId> TokensOf(const std::vector<v1::CompleteChunk>& chunks) {
  std::vector<TokenId> ids;
  for (const v1::CompleteChunk& chunk : chunks) {
    for (const std::uint32_t id : chunk.choice().token_ids()) {
      ids.emplace_back(id);
    }
  }
  return ids;
}

GenerationResult SplitResult() {
  GenerationResult result;
  result.reason = v1::ROUTE_REASON_PREFILL_QUICKER;
  result.route = milliseconds(3);
  result.finished.set_finish_reason(v1::FINISH_REASON_LENGTH);
  result.finished.set_split(true);
  result.finished.set_transport("tcp");
  result.finished.set_prefill_worker("p:1");
  result.finished.set_decode_worker("d:2");
  result.finished.set_cached_prompt_tokens(16);
  *result.finished.mutable_queue() = ToProtoDuration(milliseconds(1));
  *result.finished.mutable_prefill() = ToProtoDuration(milliseconds(20));
  *result.finished.mutable_transfer() = ToProtoDuration(milliseconds(10));
  *result.finished.mutable_exposed_transfer() = ToProtoDuration(milliseconds(2));
  return result;
}

TEST(CompletionsService, AnswersWithTextTokensUsageAndTimeline) {
  CompletionsHarness harness;
  harness.generator.on_start = [](FakeGenerator::Fake& fake) {
    fake.Tokens(CompletionsHarness::ByteTokens("Hi"));
    fake.Token(TokenId(2));
    fake.Finish(SplitResult());
  };
  v1::CompleteRequest request = Request("abcd ");
  request.set_request_id("mine");
  request.set_path(v1::PATH_DISAGGREGATED);
  const auto answer = harness.Complete(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const v1::CompleteResponse& response = answer.response;
  EXPECT_EQ(response.id(), "mine");
  EXPECT_EQ(response.model(), "tiny");
  ASSERT_EQ(response.choices_size(), 1);
  EXPECT_EQ(response.choices(0).text(), "Hi");
  EXPECT_THAT(response.choices(0).token_ids(), ElementsAre(3 + 'H', 3 + 'i', 2));
  EXPECT_EQ(response.choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  const auto job = harness.generator.Await(0);
  EXPECT_EQ(job->job.request_id, "mine");
  EXPECT_EQ(job->job.path, v1::PATH_DISAGGREGATED);
  EXPECT_EQ(response.usage().prompt_tokens(),
            static_cast<unsigned>(job->job.sequence.prompt_size()));
  EXPECT_EQ(response.usage().completion_tokens(), 3u) << "the control token counts";
  EXPECT_EQ(response.usage().cached_prompt_tokens(), 16u);
  const v1::Timeline& timeline = response.timeline();
  EXPECT_EQ(timeline.path(), v1::PATH_DISAGGREGATED);
  EXPECT_EQ(timeline.reason(), v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_EQ(timeline.transport(), "tcp");
  EXPECT_EQ(timeline.prefill_worker(), "p:1");
  EXPECT_EQ(timeline.decode_worker(), "d:2");
  EXPECT_EQ(FromProtoDuration(timeline.queue()), milliseconds(1));
  EXPECT_EQ(FromProtoDuration(timeline.route()), milliseconds(3));
  EXPECT_EQ(FromProtoDuration(timeline.prefill()), milliseconds(20));
  EXPECT_EQ(FromProtoDuration(timeline.transfer()), milliseconds(10));
  EXPECT_EQ(FromProtoDuration(timeline.exposed_transfer()), milliseconds(2));
  // B57: measured, not zero.
  EXPECT_GT(FromProtoDuration(timeline.tokenize()), Duration::zero());
  EXPECT_GT(FromProtoDuration(timeline.time_to_first_token()),
            FromProtoDuration(timeline.tokenize()));
  EXPECT_GT(FromProtoDuration(timeline.decode()), Duration::zero());
  EXPECT_GE(FromProtoDuration(timeline.total()), FromProtoDuration(timeline.time_to_first_token()) +
                                                     FromProtoDuration(timeline.decode()));
}

TEST(CompletionsService, WhoAsksAndHowUrgentlyIsHandedOn) {
  CompletionsHarness harness;
  harness.AnswerWith("x");
  v1::CompleteRequest request = Request();
  request.set_session("chat-7");
  request.set_zone("eu");
  request.set_priority(-3);
  grpc::ClientContext context;
  context.AddMetadata("x-baton-tenant", "team-a");
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  context.AddMetadata("traceparent", trace);
  v1::CompleteResponse response;
  ASSERT_TRUE(harness.stub->Complete(&context, request, &response).ok());

  const GenerationJob& job = harness.generator.Await(0)->job;
  EXPECT_EQ(job.tenant, "team-a");
  EXPECT_EQ(job.session, "chat-7");
  EXPECT_EQ(job.sequence.zone(), "eu");
  EXPECT_EQ(job.priority, -3);
  EXPECT_EQ(job.traceparent, trace) << "nothing is recorded here, so the trace is passed on";

  ASSERT_TRUE(harness.Complete(Request()).status.ok());
  const GenerationJob& plain = harness.generator.Await(1)->job;
  EXPECT_EQ(plain.tenant, "default");
  EXPECT_EQ(plain.session, "");
  EXPECT_EQ(plain.sequence.zone(), "");
  EXPECT_EQ(plain.priority, 0);
  EXPECT_EQ(plain.traceparent, "");
}

TEST(CompletionsService, ABadTenantIsRefusedBeforeAnyWork) {
  CompletionsHarness harness;
  grpc::ClientContext context;
  context.AddMetadata("x-baton-tenant", "two words");
  v1::CompleteResponse response;
  const absl::Status status =
      FromGrpcStatus(harness.stub->Complete(&context, Request(), &response));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ViolatedField(status), "x-baton-tenant");
  EXPECT_EQ(harness.generator.started(), 0u);
  EXPECT_EQ(harness.service.FinishedRequests().at("INVALID_ARGUMENT"), 1u);
}

TEST(CompletionsService, AServerOfOneZoneRefusesTheOthers) {
  CompletionsHarness harness({.zones = {.only = "eu"}});
  harness.AnswerWith("x");
  v1::CompleteRequest request = Request();
  request.set_zone("us");
  const absl::Status status = harness.Complete(request).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ViolatedField(status), "zone");
  request.set_zone("eu");
  EXPECT_TRUE(harness.Complete(request).status.ok());
  EXPECT_TRUE(harness.Complete(Request()).status.ok());
  EXPECT_EQ(harness.generator.Await(1)->job.sequence.zone(), "");

  CompletionsHarness of_no_zone({.zones = {.only = ""}});
  EXPECT_EQ(ViolatedField(of_no_zone.Complete(request).status), "zone");
}

TEST(CompletionsService, ARequestOfNoZoneGetsTheServersDefault) {
  CompletionsHarness harness({.zones = {.of_others = "eu"}});
  harness.AnswerWith("x");
  ASSERT_TRUE(harness.Complete(Request()).status.ok());
  EXPECT_EQ(harness.generator.Await(0)->job.sequence.zone(), "eu");
  v1::CompleteRequest request = Request();
  request.set_zone("us");
  ASSERT_TRUE(harness.Complete(request).status.ok());
  EXPECT_EQ(harness.generator.Await(1)->job.sequence.zone(), "us");
}

// Spans of a test, by thread-safe means.
class KeptSpans final : public SpanSink {
 public:
  void Record(Span span) override {
    absl::MutexLock lock(&mutex_);
    spans_.push_back(std::move(span));
  }
  std::vector<Span> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(spans_, {});
  }

 private:
  absl::Mutex mutex_;
  std::vector<Span> spans_;
};

TEST(CompletionsService, EveryRequestLeavesASpan) {
  KeptSpans spans;
  {
    CompletionsHarness harness({.spans = &spans, .span_name = "test.request"});
    harness.AnswerWith("ab");
    ASSERT_TRUE(harness.Complete(Request()).status.ok());
    harness.generator.on_start = [](FakeGenerator::Fake& fake) {
      fake.Fail(absl::UnavailableError("nobody"));
    };
    grpc::ClientContext context;
    context.AddMetadata("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    v1::CompleteResponse response;
    EXPECT_FALSE(harness.stub->Complete(&context, Request(), &response).ok());

    const std::vector<Span> kept = spans.Take();
    ASSERT_EQ(kept.size(), 2u);
    EXPECT_EQ(kept[0].name, "test.request");
    EXPECT_TRUE(kept[0].status.ok());
    EXPECT_EQ(kept[0].parent, std::nullopt);
    EXPECT_EQ(harness.generator.Await(0)->job.traceparent, kept[0].context.ToString());
    std::map<std::string_view, Span::Value> attributes(kept[0].attributes.begin(),
                                                       kept[0].attributes.end());
    EXPECT_EQ(std::get<std::int64_t>(attributes.at("gen_ai.usage.completion_tokens")), 2);
    EXPECT_GT(std::get<double>(attributes.at("gen_ai.latency.time_to_first_token")), 0);
    EXPECT_LT(std::get<double>(attributes.at("gen_ai.latency.time_to_first_token")), 10);

    EXPECT_EQ(kept[1].status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(kept[1].context.ToString().substr(3, 32), "4bf92f3577b34da6a3ce929d0e0e4736");
    EXPECT_TRUE(kept[1].parent.has_value());
    EXPECT_EQ(harness.generator.Await(1)->job.traceparent, kept[1].context.ToString());
  }
}

TEST(CompletionsService, StreamsAChunkForEveryTokenAndTheSumsInTheLastOnly) {
  CompletionsHarness harness;
  const std::string text = "na\u00efve \U0001F600 DEFx";
  harness.AnswerWith(text);
  v1::CompleteRequest request = Request();
  request.add_stop("DEFG");
  Stream stream(harness, request);
  const std::vector<v1::CompleteChunk> chunks = stream.ReadAll();

  ASSERT_TRUE(stream.Finish().ok());
  EXPECT_EQ(TextOf(chunks), text);
  EXPECT_EQ(TokensOf(chunks), CompletionsHarness::ByteTokens(text))
      << "each token once, also when its text is held back";
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const bool last = i + 1 == chunks.size();
    EXPECT_EQ(FindInvalidUtf8(chunks[i].choice().text()), std::nullopt) << "B2";
    EXPECT_EQ(chunks[i].has_usage(), last);
    EXPECT_EQ(chunks[i].has_timeline(), last);
    EXPECT_EQ(chunks[i].choice().finish_reason(),
              last ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_UNSPECIFIED);
    EXPECT_EQ(chunks[i].id(), chunks[0].id());
  }
  EXPECT_FALSE(chunks[0].id().empty());
  EXPECT_EQ(chunks.back().usage().completion_tokens(), text.size());

  const auto whole = harness.Complete(request);
  EXPECT_EQ(whole.response.choices(0).text(), text) << "streamed or not, the text is the same";
}

TEST(CompletionsService, TheFirstChunkComesBeforeTheSecondTokenIsThere) {
  CompletionsHarness harness;
  Stream stream(harness, Request());
  const auto fake = harness.generator.Await(0);
  fake->Tokens(CompletionsHarness::ByteTokens("a"));
  v1::CompleteChunk chunk;
  ASSERT_TRUE(stream.Read(chunk));
  EXPECT_EQ(chunk.choice().text(), "a");

  fake->Finish(v1::FINISH_REASON_STOP);
  ASSERT_TRUE(stream.Read(chunk));
  EXPECT_EQ(chunk.choice().finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_FALSE(stream.Read(chunk));
  EXPECT_TRUE(stream.Finish().ok());
}

// B8 to B10, B12: a prompt of tokens honours stop strings as well.
TEST(CompletionsService, AStopStringEndsTheTextAndTheTimelineKnowsThePath) {
  CompletionsHarness harness;
  harness.generator.on_start = [](FakeGenerator::Fake& fake) {
    fake.Progress(SplitResult());
    fake.Tokens(CompletionsHarness::ByteTokens("one. two. three"));
    fake.Finish(SplitResult());
  };
  v1::CompleteRequest request = Request();
  request.mutable_tokens()->add_ids(70);
  request.add_stop("t");
  request.add_stop(". tw");
  const auto answer = harness.Complete(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const v1::Choice& choice = answer.response.choices(0);
  EXPECT_EQ(choice.text(), "one. ");
  EXPECT_EQ(choice.stop_match(), "t");
  EXPECT_EQ(choice.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(answer.response.usage().completion_tokens(), 6u);
  EXPECT_EQ(choice.token_ids_size(), 6);
  EXPECT_THAT(harness.generator.Await(0)->job.stop, ElementsAre("t", ". tw"))
      << "so that the generator ends it";
  EXPECT_EQ(answer.response.usage().cached_prompt_tokens(), 16u);
  EXPECT_EQ(answer.response.timeline().path(), v1::PATH_DISAGGREGATED);
  EXPECT_EQ(answer.response.timeline().reason(), v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_EQ(answer.response.timeline().decode_worker(), "d:2");
}

TEST(CompletionsService, TokenizesAndDetokenizes) {
  CompletionsHarness harness;
  v1::TokenizeRequest request;
  request.set_text("the <|im_end|>\xEF\xBB\xBF");
  v1::TokenizeResponse tokens;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness.stub->Tokenize(&context, request, &tokens).ok());
  }
  v1::DetokenizeRequest back;
  *back.mutable_ids() = tokens.ids();
  v1::DetokenizeResponse text;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness.stub->Detokenize(&context, back, &text).ok());
  }
  EXPECT_EQ(text.text(), request.text());

  request.set_special(true);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness.stub->Tokenize(&context, request, &tokens).ok());
  }
  EXPECT_THAT(tokens.ids(), testing::Contains(2u));
  *back.mutable_ids() = tokens.ids();
  back.set_skip_special(true);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness.stub->Detokenize(&context, back, &text).ok());
  }
  EXPECT_EQ(text.text(), "the \xEF\xBB\xBF");
}

TEST(CompletionsService, TokenizeAndDetokenizeNameWhatIsWrong) {
  CompletionsHarness harness;
  const auto field = [](const grpc::Status& status) {
    return ViolatedField(FromGrpcStatus(status)).value_or("none");
  };
  v1::TokenizeResponse tokens;
  v1::TokenizeRequest bad_text;
  bad_text.set_text("\xFF");
  grpc::ClientContext first;
  EXPECT_EQ(field(harness.stub->Tokenize(&first, bad_text, &tokens)), "text");
  v1::TokenizeRequest bad_model;
  bad_model.set_model("gpt");
  grpc::ClientContext second;
  EXPECT_EQ(field(harness.stub->Tokenize(&second, bad_model, &tokens)), "model");
  v1::DetokenizeRequest bad_id;
  bad_id.add_ids(3);
  bad_id.add_ids(512);
  v1::DetokenizeResponse text;
  grpc::ClientContext third;
  EXPECT_EQ(field(harness.stub->Detokenize(&third, bad_id, &text)), "ids[1]");
}

TEST(CompletionsService, ListsItsModel) {
  CompletionsHarness harness;
  grpc::ClientContext context;
  v1::ListModelsResponse response;
  ASSERT_TRUE(harness.stub->ListModels(&context, {}, &response).ok());

  ASSERT_EQ(response.models_size(), 1);
  EXPECT_EQ(response.models(0).name(), "tiny");
  EXPECT_EQ(response.models(0).context_tokens(), 1024u);
  EXPECT_EQ(response.models(0).vocabulary_size(), 512u);
  EXPECT_EQ(response.models(0).block_tokens(), 16u);
  EXPECT_EQ(response.models(0).model_fingerprint().size(), 32u);
  EXPECT_EQ(response.models(0).tokenizer_fingerprint().size(), 32u);
}

TEST(CompletionsService, CountsFinishedRequestsByPathAndReason) {
  CompletionsHarness harness;
  harness.generator.on_start = [](FakeGenerator::Fake& fake) { fake.Finish(SplitResult()); };
  harness.Complete(Request());
  harness.Complete(Request());
  harness.Complete(Request("\xFF"));

  EXPECT_EQ(harness.service.FinishedRequests(),
            (std::map<std::string, std::uint64_t>{{"disaggregated/PREFILL_QUICKER", 2},
                                                  {"INVALID_ARGUMENT", 1}}));
}

}  // namespace
}  // namespace baton
