// How requests end that do not end by themselves: cancelled, too late, aborted, unread, refused,
// drained.

#include <gtest/gtest.h>

#include <thread>

#include "frontend/completions_service.h"
#include "google/rpc/error_details.pb.h"
#include "tests/frontend/completions_harness.h"
#include "tests/frontend/stream_call.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string TextOf(const std::vector<v1::CompleteChunk>& chunks) {
  std::string text;
  for (const v1::CompleteChunk& chunk : chunks) {
    text += chunk.choice().text();
  }
  return text;
}

// F21, B33.
TEST(CompletionsEndings, AClientThatLeavesBeforeTheFirstTokenCancelsTheGeneration) {
  CompletionsHarness harness;
  Stream stream(harness, Request());
  const auto fake = harness.generator.Await(0);
  stream.Cancel();

  EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(WaitUntil([&] { return fake->cancelled(); }, seconds(1)));
  EXPECT_TRUE(WaitUntil([&] { return harness.service.InFlight() == 0; }, seconds(1)));
  EXPECT_EQ(harness.service.FinishedRequests().at("CANCELLED"), 1u);
}

TEST(CompletionsEndings, AClientThatLeavesAUnaryCallCancelsTheGeneration) {
  CompletionsHarness harness;
  grpc::ClientContext context;
  std::jthread canceller([&] {
    harness.generator.Await(0);
    context.TryCancel();
  });
  v1::CompleteResponse response;
  const grpc::Status status = harness.stub->Complete(&context, Request(), &response);

  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(WaitUntil([&] { return harness.generator.Await(0)->cancelled(); }, seconds(1)));
  EXPECT_TRUE(WaitUntil([&] { return harness.service.InFlight() == 0; }, seconds(1)));
}

TEST(CompletionsEndings, AClientThatLeavesInTheMiddleCancelsTheGeneration) {
  CompletionsHarness harness;
  Stream stream(harness, Request());
  const auto fake = harness.generator.Await(0);
  fake->Tokens(CompletionsHarness::ByteTokens("abc"));
  v1::CompleteChunk chunk;
  ASSERT_TRUE(stream.Read(chunk));
  stream.Cancel();
  stream.ReadAll();

  EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(WaitUntil([&] { return fake->cancelled() && harness.service.InFlight() == 0; }));
}

// F23.
TEST(CompletionsEndings, TheClientsDeadlineCancelsTheGeneration) {
  CompletionsHarness harness;
  Stream stream(harness, Request(), milliseconds(80));
  const auto fake = harness.generator.Await(0);
  ASSERT_NE(fake, nullptr);
  EXPECT_TRUE(fake->job.deadline.has_value());

  EXPECT_TRUE(stream.ReadAll().empty());
  EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(WaitUntil([&] { return fake->cancelled() && harness.service.InFlight() == 0; }));
}

// F24: an absent or absurd deadline is cut to the server's.
TEST(CompletionsEndings, TheServersDeadlineEndsARequestThatBringsNone) {
  CompletionsHarness harness({.default_deadline = milliseconds(50)});
  const auto answer = harness.Complete(Request());

  EXPECT_EQ(answer.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(harness.generator.Await(0)->cancelled());
}

TEST(CompletionsEndings, AnAbsurdDeadlineIsCut) {
  CompletionsHarness harness({.max_deadline = milliseconds(50)});
  Stream stream(harness, Request(), std::chrono::hours(24 * 365 * 10));
  stream.ReadAll();

  EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(harness.generator.Await(0)->job.deadline.value(), Clock::System().Now() + seconds(1));
}

TEST(CompletionsEndings, ADeadlineThatIsOverStartsNothing) {
  CompletionsHarness harness;
  Stream stream(harness, Request(), milliseconds(-1000));
  stream.ReadAll();

  EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(harness.generator.started(), 0u);
}

TEST(CompletionsEndings, ARequestThatRunsBlocksItsIdAndFreesIt) {
  CompletionsHarness harness;
  v1::CompleteRequest request = Request();
  request.set_request_id("same");
  Stream first(harness, request);
  const auto fake = harness.generator.Await(0);
  const auto second = harness.Complete(request);
  EXPECT_EQ(second.status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ViolatedField(second.status), "request_id");

  fake->Finish(v1::FINISH_REASON_STOP);
  first.ReadAll();
  EXPECT_TRUE(first.Finish().ok());
  harness.AnswerWith("again");
  EXPECT_TRUE(harness.Complete(request).status.ok());
}

TEST(CompletionsEndings, AbortEndsTheNamedRequestsOnly) {
  CompletionsHarness harness;
  v1::CompleteRequest request = Request();
  request.set_request_id("one");
  Stream one(harness, request);
  ASSERT_NE(harness.generator.Await(0), nullptr);
  request.set_request_id("two");
  Stream two(harness, request);
  const auto kept = harness.generator.Await(1);
  v1::AbortRequest abort;
  abort.add_request_ids("unknown");
  abort.add_request_ids("one");
  grpc::ClientContext context;
  google::protobuf::Empty nothing;
  EXPECT_TRUE(harness.stub->Abort(&context, abort, &nothing).ok());

  one.ReadAll();
  EXPECT_EQ(one.Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(harness.generator.Await(0)->cancelled());
  EXPECT_FALSE(kept->cancelled());
  kept->Finish(v1::FINISH_REASON_STOP);
  two.ReadAll();
  EXPECT_TRUE(two.Finish().ok());
}

TEST(CompletionsEndings, TheGeneratorsErrorReachesTheClientAfterTheTokens) {
  CompletionsHarness harness;
  harness.generator.on_start = [](FakeGenerator::Fake& fake) {
    fake.Tokens(CompletionsHarness::ByteTokens("abc"));
    fake.Fail(WithReason(absl::AbortedError("decode worker has gone"), "GONE"));
  };
  Stream stream(harness, Request());
  EXPECT_EQ(TextOf(stream.ReadAll()), "abc");
  const absl::Status status = stream.Finish();

  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "decode worker has gone");
  int details = 0;
  status.ForEachPayload([&details](absl::string_view, const absl::Cord&) { ++details; });
  EXPECT_EQ(details, 1);
}

TEST(CompletionsEndings, UnknownIsNeverSeen) {
  CompletionsHarness harness;
  harness.generator.on_start = [](FakeGenerator::Fake& fake) {
    fake.Fail(absl::UnknownError("odd"));
  };
  EXPECT_EQ(harness.Complete(Request()).status.code(), absl::StatusCode::kInternal);
}

TEST(CompletionsEndings, WhatAGeneratorSaysIsChecked) {
  CompletionsHarness harness;
  harness.generator.on_start = [](FakeGenerator::Fake& fake) { fake.Token(TokenId(512)); };
  EXPECT_EQ(harness.Complete(Request()).status.code(), absl::StatusCode::kInternal);
  harness.generator.on_start = [](FakeGenerator::Fake& fake) {
    fake.Finish(v1::FINISH_REASON_UNSPECIFIED);
  };
  EXPECT_EQ(harness.Complete(Request()).status.code(), absl::StatusCode::kInternal);
  harness.generator.on_start = [](FakeGenerator::Fake& fake) {
    fake.Finish(v1::FINISH_REASON_CANCELLED);
  };
  EXPECT_EQ(harness.Complete(Request()).status.code(), absl::StatusCode::kCancelled);
}

// A prompt that takes long to tokenize does so beside gRPC's threads; all of its life is the same.
TEST(CompletionsEndings, LongPromptsAreServedAndCancelledLikeOthers) {
  CompletionsHarness harness;
  v1::CompleteRequest request = Request(std::string(64 << 10, ' '));
  const auto too_long = harness.Complete(request);
  EXPECT_EQ(ViolatedField(too_long.status), "prompt") << too_long.status;

  v1::CompleteRequest tokens;
  for (int i = 0; i < 900; ++i) {
    tokens.mutable_tokens()->add_ids(70);
  }
  for (std::uint32_t i = 0; i < 20'000; ++i) {
    tokens.add_stop_token_ids(i % 512);
  }
  {
    Stream stream(harness, tokens);
    const auto fake = harness.generator.Await(0);
    ASSERT_NE(fake, nullptr);
    stream.Cancel();
    EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(WaitUntil([&] { return fake->cancelled() && harness.service.InFlight() == 0; }));
  }
  // Cancelled at any moment, also while it waits to be tokenized.
  for (int i = 0; i < 50; ++i) {
    Stream stream(harness, tokens);
    stream.Cancel();
    EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(WaitUntil([&] { return harness.service.InFlight() == 0; }));
}

grpc::ChannelArguments SmallWindow() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 16);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return arguments;
}

// F20: a client that does not read is cut off by a limit of our own; others go on.
TEST(CompletionsEndings, ASlowReaderIsCutOffWithResourceExhausted) {
  CompletionsHarness harness({.max_pending_chunks = 64}, SmallWindow());
  Stream slow(harness, Request());
  const auto fake = harness.generator.Await(0);
  const std::vector<TokenId> many = CompletionsHarness::ByteTokens(std::string(256, 'x'));
  ASSERT_TRUE(WaitUntil([&] {
    fake->Tokens(many);
    return fake->cancelled();
  }));

  harness.generator.on_start = [](FakeGenerator::Fake& other) {
    other.Tokens(CompletionsHarness::ByteTokens("fine"));
    other.Finish(v1::FINISH_REASON_STOP);
  };
  EXPECT_TRUE(harness.Complete(Request()).status.ok());
  EXPECT_TRUE(WaitUntil([&] { return harness.service.InFlight() == 0; }))
      << "the end does not wait for the client to read";
  slow.ReadAll();
  EXPECT_EQ(slow.Finish().code(), absl::StatusCode::kResourceExhausted);
}

TEST(CompletionsEndings, AReaderThatStallsAfterTheLastTokenIsCutOffByTheDeadline) {
  CompletionsHarness harness(
      {.default_deadline = milliseconds(1500), .max_pending_chunks = 1 << 20}, SmallWindow());
  Stream slow(harness, Request());
  const auto fake = harness.generator.Await(0);
  fake->Tokens(CompletionsHarness::ByteTokens(std::string(50'000, 'x')));
  fake->Finish(v1::FINISH_REASON_LENGTH);

  EXPECT_TRUE(WaitUntil([&] { return harness.service.InFlight() == 0; }));
  slow.ReadAll();
  EXPECT_EQ(slow.Finish().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(CompletionsEndings, AboveTheLimitRequestsAreRefusedAtOnce) {
  CompletionsHarness harness({.max_running_requests = 1});
  Stream first(harness, Request());
  const auto fake = harness.generator.Await(0);
  EXPECT_EQ(harness.Complete(Request()).status.code(), absl::StatusCode::kResourceExhausted);

  fake->Finish(v1::FINISH_REASON_STOP);
  first.ReadAll();
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(WaitUntil([&] { return harness.service.InFlight() == 0; }));
}

// T42, B32: ten times what is taken at once. Everything above it hears so at once and when to try
// again; everything below it ends well.
TEST(CompletionsEndings, ABurstIsRefusedWithAHintBeyondTheLimit) {
  constexpr std::size_t kLimit = 4;
  CompletionsHarness harness({.max_running_requests = kLimit});
  std::vector<std::unique_ptr<Stream>> taken;
  for (std::size_t i = 0; i < kLimit; ++i) {
    taken.push_back(std::make_unique<Stream>(harness, Request()));
    harness.generator.Await(i);
  }
  const TimePoint start = Clock::System().Now();
  for (std::size_t i = 0; i < 10 * kLimit; ++i) {
    const absl::Status status = harness.Complete(Request()).status;
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    const auto hint = status.GetPayload("type.googleapis.com/google.rpc.RetryInfo");
    google::rpc::RetryInfo retry;
    ASSERT_TRUE(hint.has_value() && retry.ParseFromString(std::string(*hint)));
    EXPECT_GE(retry.retry_delay().seconds(), 1);
  }
  EXPECT_LT(Clock::System().Now() - start, 10 * kLimit * milliseconds(50)) << "50 ms each";

  for (std::size_t i = 0; i < kLimit; ++i) {
    harness.generator.Await(i)->Finish(v1::FINISH_REASON_STOP);
    taken[i]->ReadAll();
    EXPECT_TRUE(taken[i]->Finish().ok());
  }
  harness.AnswerWith("fine");
  EXPECT_TRUE(WaitUntil([&] { return harness.service.InFlight() == 0; }));
  EXPECT_TRUE(harness.Complete(Request()).status.ok());
}

// F12, F13.
TEST(CompletionsEndings, DrainingRefusesNewRequestsAndCanCancelTheRest) {
  CompletionsHarness harness;
  Stream running(harness, Request());
  const auto fake = harness.generator.Await(0);
  harness.service.StopIntake();
  EXPECT_EQ(harness.Complete(Request()).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(fake->cancelled());
  EXPECT_EQ(harness.service.InFlight(), 1u);

  harness.service.CancelRest(absl::UnavailableError("server is shutting down"));
  running.ReadAll();
  EXPECT_EQ(running.Finish().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(WaitUntil([&] { return harness.service.InFlight() == 0; }));
}

TEST(CompletionsEndings, AGenerationThatLingersKeepsItsCallUntilItHasEnded) {
  CompletionsHarness harness;
  Stream stream(harness, Request());
  const auto fake = harness.generator.Await(0);
  fake->LingerWhenCancelled();
  stream.Cancel();
  EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(WaitUntil([&] { return fake->cancelled(); }));
  EXPECT_EQ(harness.service.InFlight(), 1u);

  fake->Finish(v1::FINISH_REASON_LENGTH);
  EXPECT_TRUE(WaitUntil([&] { return harness.service.InFlight() == 0; }));
}

}  // namespace
}  // namespace baton
