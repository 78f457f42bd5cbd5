// The whole router over fake workers, all in this process.
#include "router/router.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/router/two_fake_workers.h"

namespace baton {
namespace {

TEST_F(RouterTest, AShortPromptIsColocated) {
  StartAndAwait();
  const Answer answer = Complete(Prompt(511));

  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.response.choices(0).text(), "ok");
  EXPECT_EQ(answer.response.timeline().path(), v1::PATH_COLOCATED);
  EXPECT_EQ(answer.response.timeline().reason(), v1::ROUTE_REASON_SHORT_PROMPT);
  EXPECT_EQ(answer.response.timeline().decode_worker(), decode_->address());
  EXPECT_GT(FromProtoDuration(answer.response.timeline().route()), Duration::zero());
  const v1::GenerateRequest sent = decode_->requests().at(0);
  EXPECT_EQ(sent.request_id(), answer.response.id());
  EXPECT_EQ(sent.sequence().prompt_size(), 511);
  EXPECT_TRUE(sent.prefill().empty());
  EXPECT_FALSE(sent.forced());
}

TEST_F(RouterTest, ALongPromptIsSplit) {
  v1::GenerateEvent::Finished finished = Finished();
  finished.set_split(true);
  finished.set_transport("tcp");
  finished.set_prefill_worker(prefill_->address());
  decode_->script = FakeWorker::Answer({70}, finished);
  StartAndAwait();
  const Answer answer = Complete(Prompt(512));

  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.response.timeline().path(), v1::PATH_DISAGGREGATED);
  EXPECT_EQ(answer.response.timeline().reason(), v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_EQ(answer.response.timeline().transport(), "tcp");
  const v1::GenerateRequest sent = decode_->requests().at(0);
  ASSERT_EQ(sent.prefill_size(), 1);
  EXPECT_EQ(sent.prefill(0).address(), prefill_->address());
  EXPECT_EQ(sent.prefill(0).instance_id(), prefill_->description.instance_id());
}

TEST_F(RouterTest, AFailedPrefillIsReportedAsSuch) {
  v1::GenerateEvent::Finished finished = Finished();
  finished.set_prefill_failed(true);
  decode_->script = FakeWorker::Answer({70}, finished);
  StartAndAwait();
  const Answer answer = Complete(Prompt(600));

  EXPECT_EQ(answer.response.timeline().path(), v1::PATH_COLOCATED);
  EXPECT_EQ(answer.response.timeline().reason(), v1::ROUTE_REASON_PREFILL_FAILED);
}

TEST_F(RouterTest, AForcedSplitSaysSoAndFailsWithoutAPrefillWorker) {
  StartAndAwait();
  ASSERT_TRUE(Complete(Prompt(5, v1::PATH_DISAGGREGATED)).status.ok());
  EXPECT_TRUE(decode_->requests().at(0).forced());

  const int port = prefill_->port();
  prefill_.reset();
  ASSERT_TRUE(WaitUntil([this] { return !Status().workers(1).alive(); }));
  EXPECT_EQ(Complete(Prompt(5, v1::PATH_DISAGGREGATED)).status.code(),
            absl::StatusCode::kUnavailable);
  const Answer automatic = Complete(Prompt(600));
  ASSERT_TRUE(automatic.status.ok());
  EXPECT_EQ(automatic.response.timeline().reason(), v1::ROUTE_REASON_NO_PREFILL_WORKER);
  EXPECT_EQ(HealthOf(channel_, ""), "SERVING") << "B51: a decode worker is enough";

  // Back on the same port: split again.
  prefill_.emplace(v1::ROLE_PREFILL, IdentityOf(Model()), port);
  ASSERT_TRUE(WaitUntil([this] { return Status().workers(1).problem().empty(); }));
  EXPECT_EQ(Complete(Prompt(600)).response.timeline().reason(), v1::ROUTE_REASON_PREFILL_QUICKER);
}

TEST_F(RouterTest, APrefillWorkerThatComputesOtherwiseIsNoCandidate) {
  EngineIdentity other = IdentityOf(Model());
  other.arithmetic = "another";
  *prefill_->description.mutable_identity() = ToProto(other);
  StartAndAwait();

  EXPECT_EQ(Complete(Prompt(600)).response.timeline().reason(), v1::ROUTE_REASON_NO_PREFILL_WORKER);
  EXPECT_TRUE(decode_->requests().at(0).prefill().empty());
}

TEST_F(RouterTest, WithoutADecodeWorkerItIsNotServing) {
  StartAndAwait();
  const int port = decode_->port();
  decode_.reset();
  ASSERT_TRUE(AwaitHealth("NOT_SERVING"));
  EXPECT_FALSE(Status().ready());
  EXPECT_EQ(Complete(Prompt(5)).status.code(), absl::StatusCode::kUnavailable);

  decode_.emplace(v1::ROLE_DECODE, IdentityOf(Model()), port);
  decode_->script = FakeWorker::Answer({70}, Finished());
  ASSERT_TRUE(AwaitHealth("SERVING"));
  EXPECT_TRUE(Complete(Prompt(5)).status.ok()) << "B61: the first request after SERVING succeeds";
}

TEST_F(RouterTest, ChoicesAndLogprobsGoThrough) {
  decode_->script = [](const v1::GenerateRequest& request, grpc::ServerContext&,
                       grpc::ServerWriter<v1::GenerateEvent>& writer) {
    v1::GenerateEvent event;
    for (int i = 1; i < request.sequence().prompt_size(); ++i) {
      event.mutable_prompt_logprobs()->add_tokens()->set_logprob(-1.0f * static_cast<float>(i));
    }
    writer.Write(event);
    for (const std::uint32_t choice : {1u, 0u}) {
      event.Clear();
      event.set_choice(choice);
      event.set_token(3 + 'x' + choice);
      event.mutable_logprob()->set_id(event.token());
      event.mutable_logprob()->set_logprob(-0.5f);
      event.mutable_logprob()->add_alternatives()->set_id(9);
      writer.Write(event);
    }
    event.Clear();
    event.set_choice(1);
    event.set_choice_end(v1::FINISH_REASON_STOP);
    writer.Write(event);
    *event.mutable_finished() = Finished();
    writer.Write(event);
    return grpc::Status::OK;
  };
  StartAndAwait();
  v1::CompleteRequest request = Prompt(3);
  request.set_n(2);
  request.set_logprobs(1);
  request.set_echo(true);
  request.set_cache_salt("salt");
  const Answer answer = Complete(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_EQ(answer.response.choices_size(), 2);
  EXPECT_EQ(answer.response.choices(0).finish_reason(), Finished().finish_reason());
  EXPECT_EQ(answer.response.choices(1).finish_reason(), v1::FINISH_REASON_STOP);
  const v1::Choice& choice = answer.response.choices(1);
  EXPECT_EQ(choice.token_ids(3), 3u + 'y');
  EXPECT_EQ(choice.logprobs().tokens(2).logprob(), -2);
  EXPECT_EQ(choice.logprobs().tokens(3).logprob(), -0.5f);
  EXPECT_EQ(choice.logprobs().tokens(3).alternatives(0).id(), 9u);
  const v1::GenerateRequest asked = decode_->requests().at(0);
  EXPECT_EQ(asked.choices(), 2u);
  EXPECT_EQ(asked.sequence().logprobs(), 1u);
  EXPECT_TRUE(asked.sequence().prompt_logprobs());
  EXPECT_EQ(asked.sequence().cache_salt(), "salt");
}

// What gRPC refuses by default, 4 MiB in one message, is a long prompt's log probabilities.
TEST_F(RouterTest, LogprobsMayTakeManyMebibytes) {
  decode_->script = [](const v1::GenerateRequest& request, grpc::ServerContext&,
                       grpc::ServerWriter<v1::GenerateEvent>& writer) {
    v1::GenerateEvent event;
    for (int i = 1; i < request.sequence().prompt_size(); ++i) {
      v1::TokenLogprob& token = *event.mutable_prompt_logprobs()->add_tokens();
      for (std::uint32_t k = 0; k < 1000; ++k) {
        v1::TokenLogprob::Alternative& alternative = *token.add_alternatives();
        alternative.set_id(k);
        alternative.set_logprob(-1);
      }
    }
    EXPECT_GT(event.ByteSizeLong(), std::size_t{4} << 20);
    writer.Write(event);
    event.set_token(70);
    event.mutable_logprob()->set_id(70);
    writer.Write(event);
    *event.mutable_finished() = Finished();
    writer.Write(event);
    return grpc::Status::OK;
  };
  StartAndAwait();
  v1::CompleteRequest request = Prompt(600);
  request.set_logprobs(20);
  request.set_echo(true);
  grpc::ClientContext context;
  const auto reader = stub_->StreamComplete(&context, request);
  int entries = 0;
  for (v1::CompleteChunk chunk; reader->Read(&chunk);) {
    entries += chunk.choice().logprobs().tokens_size();
  }

  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(entries, 601);
}

TEST_F(RouterTest, AStopStringGoesToTheWorkerAndTheTextEndsWithIt) {
  decode_->script = [](const v1::GenerateRequest&, grpc::ServerContext&,
                       grpc::ServerWriter<v1::GenerateEvent>& writer) {
    v1::GenerateEvent event;
    event.mutable_progress()->set_split(true);
    event.mutable_progress()->set_transport("tcp");
    writer.Write(event);
    for (const char byte : std::string("abc")) {
      event.set_token(3u + static_cast<std::uint8_t>(byte));
      writer.Write(event);
    }
    // What comes after the stop string changes nothing.
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken off");
  };
  StartAndAwait();
  v1::CompleteRequest request = Prompt(600);
  request.add_stop("c");
  const Answer answer = Complete(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.response.choices(0).text(), "ab");
  EXPECT_EQ(answer.response.timeline().path(), v1::PATH_DISAGGREGATED);
  EXPECT_EQ(answer.response.timeline().reason(), v1::ROUTE_REASON_PREFILL_QUICKER);
  EXPECT_EQ(answer.response.timeline().transport(), "tcp");
  ASSERT_EQ(decode_->requests().size(), 1u);
  EXPECT_EQ(decode_->requests()[0].stop(0), "c");
}

// T69: the counters sum to the requests.
TEST_F(RouterTest, StatusShowsTheFleetAndCountsRequests) {
  StartAndAwait();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Complete(Prompt(5)).status.ok());
  }
  EXPECT_FALSE(Complete(Prompt(0)).status.ok());
  const v1::StatusResponse status = Status();

  EXPECT_EQ(status.role(), v1::ROLE_ROUTER);
  EXPECT_EQ(status.model(), "tiny");
  EXPECT_TRUE(status.ready());
  EXPECT_EQ(status.colocate_below_tokens(), 512u);
  EXPECT_EQ(status.workers(0).address(), decode_->address());
  EXPECT_EQ(status.workers(1).description().role(), v1::ROLE_PREFILL);
  EXPECT_EQ(status.requests().at("colocated/SHORT_PROMPT"), 3u);
  EXPECT_EQ(status.requests().at("INVALID_ARGUMENT"), 1u);
  EXPECT_EQ(status.policy(), "prefix");
  EXPECT_EQ(status.prefix_index().query_tokens(), 15u);
}

}  // namespace
}  // namespace baton
