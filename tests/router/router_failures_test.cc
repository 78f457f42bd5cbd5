// Workers that fail, refuse or die, clients that leave, and what a router tries again.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "router/retry_budget.h"
#include "tests/router/two_fake_workers.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(RouterTest, AStreamThatBreaksOffIsUnavailableBeforeATokenAndAbortedAfter) {
  decode_->script = [](const v1::GenerateRequest& request, grpc::ServerContext&,
                       grpc::ServerWriter<v1::GenerateEvent>& writer) {
    if (request.sequence().prompt_size() == 2) {
      v1::GenerateEvent event;
      event.set_token(70);
      writer.Write(event);
    }
    return request.sequence().prompt_size() == 3 ? grpc::Status(grpc::StatusCode::UNKNOWN, "odd")
                                                 : grpc::Status::OK;
  };
  StartAndAwait();

  EXPECT_EQ(Complete(Prompt(1)).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Complete(Prompt(2)).status.code(), absl::StatusCode::kAborted);
  const absl::Status odd = Complete(Prompt(3)).status;
  EXPECT_EQ(odd.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(odd.message()).find(decode_->address()), std::string::npos);
}

TEST_F(RouterTest, AWorkersRefusalComesThroughWithItsDetails) {
  decode_->script = [](const v1::GenerateRequest&, grpc::ServerContext&,
                       grpc::ServerWriter<v1::GenerateEvent>&) {
    return ToGrpcStatus(WithRetryAfter(
        WithReason(absl::ResourceExhaustedError("queue is full"), "QUEUE_FULL"), seconds(1)));
  };
  StartAndAwait();
  const absl::Status status = Complete(Prompt(1)).status;

  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  int details = 0;
  status.ForEachPayload([&details](absl::string_view, const absl::Cord&) { ++details; });
  EXPECT_EQ(details, 2);
}

// A decode worker that waits until its call is cancelled.
FakeWorker::Script WaitForCancellation(std::atomic<int>& waiting, std::atomic<int>& cancelled) {
  return [&](const v1::GenerateRequest&, grpc::ServerContext& context,
             grpc::ServerWriter<v1::GenerateEvent>&) {
    ++waiting;
    WaitUntil([&context] { return context.IsCancelled(); });
    cancelled += context.IsCancelled() ? 1 : 0;
    return grpc::Status::CANCELLED;
  };
}

// F21.
TEST_F(RouterTest, AClientThatLeavesCancelsTheWorkersCall) {
  std::atomic<int> waiting{0};
  std::atomic<int> cancelled{0};
  decode_->script = WaitForCancellation(waiting, cancelled);
  StartAndAwait();
  grpc::ClientContext context;
  v1::CompleteResponse response;
  std::jthread canceller([&] {
    WaitUntil([&] { return waiting > 0; });
    context.TryCancel();
  });

  EXPECT_EQ(stub_->Complete(&context, Prompt(5), &response).error_code(),
            grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(WaitUntil([&] { return cancelled == 1; }, seconds(1)));
}

// F23.
TEST_F(RouterTest, TheDeadlineTravels) {
  std::atomic<int> waiting{0};
  std::atomic<int> cancelled{0};
  decode_->script = WaitForCancellation(waiting, cancelled);
  StartAndAwait();

  EXPECT_EQ(Complete(Prompt(5), milliseconds(150)).status.code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(WaitUntil([&] { return cancelled == 1; }, seconds(1)));
}

// F5: tokens have been streamed, then the worker dies.
TEST_F(RouterTest, AWorkerThatDiesInTheMiddleIsAborted) {
  std::atomic<bool> streaming{false};
  decode_->script = [&](const v1::GenerateRequest&, grpc::ServerContext& context,
                        grpc::ServerWriter<v1::GenerateEvent>& writer) {
    v1::GenerateEvent event;
    event.set_token(3 + 'x');
    writer.Write(event);
    streaming = true;
    WaitUntil([&context] { return context.IsCancelled(); });
    return grpc::Status::CANCELLED;
  };
  StartAndAwait();
  grpc::ClientContext context;
  const auto reader = stub_->StreamComplete(&context, Prompt(5));
  v1::CompleteChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.choice().text(), "x");
  ASSERT_TRUE(WaitUntil([&] { return streaming.load(); }));
  decode_.reset();

  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::ABORTED);
}

// F4, F12: nothing has been streamed, another decode worker is there.
TEST_F(RouterTest, ARequestIsMovedOnceToAnotherDecodeWorker) {
  const FakeWorker::Script refuse = [](const v1::GenerateRequest&, grpc::ServerContext&,
                                       grpc::ServerWriter<v1::GenerateEvent>& writer) {
    v1::GenerateEvent event;
    event.mutable_progress();  // which is no token
    writer.Write(event);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "shutting down");
  };
  decode_->script = refuse;
  FakeWorker second(v1::ROLE_DECODE, IdentityOf(Model()));
  second.script = FakeWorker::Answer({3 + 'o', 3 + 'k'}, Finished());
  more_decode_ = {second.address()};
  StartRouter();
  ASSERT_TRUE(WaitUntil([this] {
    const v1::StatusResponse status = Status();
    return status.workers(0).problem().empty() && status.workers(1).problem().empty();
  }));
  for (int i = 0; i < 4; ++i) {
    const Answer answer = Complete(Prompt(5));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.response.timeline().decode_worker(), second.address());
  }
  EXPECT_GT(decode_->requests().size(), 0u);

  second.script = refuse;
  EXPECT_EQ(Complete(Prompt(5)).status.code(), absl::StatusCode::kUnavailable);
}

// F4: whoever gets a request that another worker has held gets what is left of its time.
TEST_F(RouterTest, AMovedRequestKeepsItsDeadline) {
  constexpr milliseconds kDeadline = seconds(5);
  constexpr milliseconds kHeld(400);
  const auto left = [](const grpc::ServerContext& context) {
    return std::chrono::duration_cast<milliseconds>(context.deadline() -
                                                    std::chrono::system_clock::now());
  };
  absl::Mutex mutex;
  std::optional<milliseconds> at_first;
  milliseconds at_second{0};
  FakeWorker second(v1::ROLE_DECODE, IdentityOf(Model()));
  const FakeWorker::Script script = [&](const v1::GenerateRequest& request,
                                        grpc::ServerContext& context,
                                        grpc::ServerWriter<v1::GenerateEvent>& writer) {
    {
      absl::MutexLock lock(&mutex);
      if (at_first.has_value()) {
        at_second = left(context);
        return FakeWorker::Answer({3 + 'o', 3 + 'k'}, Finished())(request, context, writer);
      }
      at_first = left(context);
    }
    const TimePoint until = Clock::System().Now() + kHeld;
    WaitUntil([until] { return Clock::System().Now() >= until; });
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "shutting down");
  };
  decode_->script = script;
  second.script = script;
  more_decode_ = {second.address()};
  StartRouter();
  ASSERT_TRUE(WaitUntil([this] {
    const v1::StatusResponse status = Status();
    return status.workers(0).problem().empty() && status.workers(1).problem().empty();
  }));

  const Answer answer = Complete(Prompt(5), kDeadline);

  EXPECT_TRUE(answer.status.ok()) << answer.status;
  absl::MutexLock lock(&mutex);
  ASSERT_TRUE(at_first.has_value());
  EXPECT_LE(*at_first, kDeadline + milliseconds(100));  // gRPC rounds up what it tells
  EXPECT_GT(at_second, milliseconds(0));
  EXPECT_LE(at_second, *at_first - kHeld + milliseconds(100));
}

// F28: every decode worker fails every request. The workers get a tenth more than the clients have
// asked, and a request whose first token is out is not asked again.
TEST_F(RouterTest, ASickFleetIsNotAskedTwice) {
  std::atomic<bool> after_a_token = false;
  const FakeWorker::Script fail = [&after_a_token](const v1::GenerateRequest&, grpc::ServerContext&,
                                                   grpc::ServerWriter<v1::GenerateEvent>& writer) {
    if (after_a_token.load()) {
      v1::GenerateEvent event;
      event.set_token(70);
      writer.Write(event);
    }
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "sick");
  };
  decode_->script = fail;
  FakeWorker second(v1::ROLE_DECODE, IdentityOf(Model()));
  second.script = fail;
  more_decode_ = {second.address()};
  StartRouter();
  ASSERT_TRUE(WaitUntil([this] {
    const v1::StatusResponse status = Status();
    return status.workers(0).problem().empty() && status.workers(1).problem().empty();
  }));
  const auto attempts = [&] { return decode_->requests().size() + second.requests().size(); };
  constexpr std::size_t kRequests = 300;
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < kRequests; ++i) {
    EXPECT_EQ(Complete(Prompt(5)).status.code(), absl::StatusCode::kUnavailable);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const RetryBudget::Options budget;
  const double most_retries =
      budget.most_saved + kRequests * budget.share + took.count() * budget.floor_per_second;
  EXPECT_GT(attempts(), kRequests);
  EXPECT_LE(static_cast<double>(attempts() - kRequests), most_retries + 1);

  after_a_token.store(true);
  const std::size_t before = attempts();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Complete(Prompt(5)).status.code(), absl::StatusCode::kAborted);
  }
  EXPECT_EQ(attempts(), before + 20);
}

}  // namespace
}  // namespace baton
