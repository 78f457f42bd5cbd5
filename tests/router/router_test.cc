// The whole router over fake workers, all in this process.

#include "router/router.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <thread>

#include "baton/v1/completions.grpc.pb.h"
#include "proto/status_conversion.h"
#include "router/retry_budget.h"
#include "tests/router/fake_worker.h"
#include "tests/support/health_client.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

v1::GenerateEvent::Finished Finished(v1::FinishReason reason = v1::FINISH_REASON_LENGTH) {
  v1::GenerateEvent::Finished finished;
  finished.set_finish_reason(reason);
  return finished;
}

class RouterTest : public testing::Test {
 protected:
  static const Checkpoint& Model() {
    static const TinyCheckpoint model;
    return *model;
  }

  RouterTest()
      : decode_(std::in_place, v1::ROLE_DECODE, IdentityOf(Model())),
        prefill_(std::in_place, v1::ROLE_PREFILL, IdentityOf(Model())) {
    decode_->script = FakeWorker::Answer({3 + 'o', 3 + 'k'}, Finished());
  }

  void StartRouter() {
    std::vector<std::string> decode = more_decode_;
    decode.insert(decode.begin(), decode_->address());
    router_ = *Router::Start(Model(), {.server = {.role = "router"},
                                       .fleet = {.decode = decode,
                                                 .prefill = {prefill_->address()},
                                                 .watch_again = milliseconds(20),
                                                 .dead_after = milliseconds(500)}});
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(router_->address(), grpc::InsecureChannelCredentials(),
                                         arguments);
    stub_ = v1::Completions::NewStub(channel_);
  }

  bool AwaitHealth(const std::string& wanted) {
    return WaitUntil([&] { return HealthOf(channel_, "") == wanted; });
  }

  // Both workers accepted.
  void StartAndAwait() {
    StartRouter();
    ASSERT_TRUE(WaitUntil([this] {
      const v1::StatusResponse status = Status();
      return status.workers_size() == 2 && status.workers(0).problem().empty() &&
             status.workers(1).problem().empty();
    }));
    ASSERT_TRUE(AwaitHealth("SERVING"));
  }

  v1::StatusResponse Status() {
    grpc::ClientContext context;
    v1::StatusResponse response;
    EXPECT_TRUE(v1::Admin::NewStub(channel_)->Status(&context, {}, &response).ok());
    return response;
  }

  static v1::CompleteRequest Prompt(int tokens, v1::Path path = v1::PATH_UNSPECIFIED) {
    v1::CompleteRequest request;
    for (int i = 0; i < tokens; ++i) {
      request.mutable_tokens()->add_ids(70);
    }
    request.set_max_tokens(8);
    request.set_path(path);
    return request;
  }

  struct Answer {
    absl::Status status;
    v1::CompleteResponse response;
  };
  Answer Complete(const v1::CompleteRequest& request, milliseconds deadline = seconds(10)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    Answer answer;
    answer.status = FromGrpcStatus(stub_->Complete(&context, request, &answer.response));
    return answer;
  }

  std::optional<FakeWorker> decode_;
  std::optional<FakeWorker> prefill_;
  std::vector<std::string> more_decode_;
  std::unique_ptr<Router> router_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Completions::Stub> stub_;
};

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

// What a worker holds counts, but not where the whole prompt is computed for its log probabilities.
TEST_F(RouterTest, ACachedPromptIsColocatedUnlessItsLogprobsAreWanted) {
  const PrefixHash root = RootHash({.model_fingerprint = Model().fingerprint(),
                                    .tokenizer_fingerprint = Model().tokenizer().fingerprint()});
  v1::WorkerReport report;
  report.mutable_snapshot()->set_first(true);
  report.mutable_snapshot()->set_last(true);
  for (const PrefixHash& hash : HashBlocks(root, std::vector<TokenId>(600, TokenId(70)))) {
    report.mutable_snapshot()->mutable_hashes()->append(hash.bytes.begin(), hash.bytes.end());
  }
  decode_->Report(report);
  StartAndAwait();
  ASSERT_TRUE(WaitUntil([this] { return Status().prefix_index().entries() == 600 / 16; }));

  EXPECT_EQ(Complete(Prompt(600)).response.timeline().reason(), v1::ROUTE_REASON_PREFIX_CACHED);
  EXPECT_TRUE(decode_->requests().at(0).prefill().empty());
  v1::CompleteRequest logprobs = Prompt(600);
  logprobs.set_logprobs(0);
  logprobs.set_echo(true);
  Complete(logprobs);
  EXPECT_EQ(decode_->requests().at(1).prefill_size(), 1);
}

std::vector<PrefixHash> BlocksOf(const Checkpoint& model, std::size_t tokens) {
  const PrefixHash root = RootHash({.model_fingerprint = model.fingerprint(),
                                    .tokenizer_fingerprint = model.tokenizer().fingerprint()});
  return HashBlocks(root, std::vector<TokenId>(tokens, TokenId(70)));
}

std::string BytesOf(const std::vector<PrefixHash>& hashes) {
  std::string bytes;
  for (const PrefixHash& hash : hashes) {
    bytes.append(hash.bytes.begin(), hash.bytes.end());
  }
  return bytes;
}

v1::WorkerReport Holds(v1::KvTier tier, const std::string& hashes) {
  v1::WorkerReport report;
  report.mutable_snapshot()->set_first(true);
  report.mutable_snapshot()->set_last(true);
  report.mutable_snapshot()->set_tier(tier);
  report.mutable_snapshot()->set_hashes(hashes);
  return report;
}

v1::WorkerReport Removes(v1::KvTier tier, const std::string& hashes) {
  v1::WorkerReport report;
  v1::KvEvent& event = *report.mutable_events()->add_events();
  event.set_tier(tier);
  event.set_removed(hashes);
  return report;
}

// T66: the same prefix on the device of A and the disk of B: A. Evicted there: B before cold C.
// Gone from B too: anywhere.
TEST_F(RouterTest, APrefixOnADeviceComesBeforeOneOnDiskBeforeNone) {
  FakeWorker b(v1::ROLE_DECODE, IdentityOf(Model()));
  FakeWorker c(v1::ROLE_DECODE, IdentityOf(Model()));
  b.script = c.script = decode_->script;
  more_decode_ = {b.address(), c.address()};
  const std::string blocks = BytesOf(BlocksOf(Model(), 600));
  decode_->Report(Holds(v1::KV_TIER_DEVICE, blocks));
  b.Report(Holds(v1::KV_TIER_DISK, blocks));
  StartRouter();
  constexpr std::uint64_t kBlocks = 600 / 16;
  const auto entries = [this](v1::KvTier tier) {
    const v1::PrefixIndexStatus index = Status().prefix_index();
    return index.tiers_size() > tier ? index.tiers(tier).entries() : 0;
  };
  ASSERT_TRUE(WaitUntil([&] {
    const v1::StatusResponse status = Status();
    return std::all_of(status.workers().begin(), status.workers().end(),
                       [](const v1::WorkerStatus& worker) { return worker.problem().empty(); }) &&
           entries(v1::KV_TIER_DEVICE) == kBlocks && entries(v1::KV_TIER_DISK) == kBlocks;
  }));
  EXPECT_EQ(Status().prefix_index().entries(), 2 * kBlocks);
  for (int i = 0; i < 20; ++i) {
    const Answer answer = Complete(Prompt(600));
    ASSERT_EQ(answer.response.timeline().decode_worker(), decode_->address()) << answer.status;
    ASSERT_EQ(answer.response.timeline().reason(), v1::ROUTE_REASON_PREFIX_CACHED);
  }

  decode_->Report(Removes(v1::KV_TIER_DEVICE, blocks));
  ASSERT_TRUE(WaitUntil([&] { return entries(v1::KV_TIER_DEVICE) == 0; }));
  for (int i = 0; i < 20; ++i) {
    const Answer answer = Complete(Prompt(600));
    ASSERT_EQ(answer.response.timeline().decode_worker(), b.address()) << answer.status;
    ASSERT_EQ(answer.response.timeline().reason(), v1::ROUTE_REASON_PREFIX_CACHED);
  }
  const v1::PrefixIndexStatus index = Status().prefix_index();
  EXPECT_EQ(index.tiers(v1::KV_TIER_DEVICE).hit_tokens(), 20 * 16 * kBlocks);
  EXPECT_EQ(index.tiers(v1::KV_TIER_HOST).hit_tokens(), 0u);
  EXPECT_EQ(index.tiers(v1::KV_TIER_DISK).hit_tokens(), 20 * 16 * kBlocks);
  EXPECT_EQ(index.hit_tokens(), 40 * 16 * kBlocks);

  b.Report(Removes(v1::KV_TIER_DISK, blocks));
  ASSERT_TRUE(WaitUntil([&] { return Status().prefix_index().entries() == 0; }));
  std::set<std::string> places;
  for (int i = 0; i < 20; ++i) {
    const Answer answer = Complete(Prompt(600));
    EXPECT_NE(answer.response.timeline().reason(), v1::ROUTE_REASON_PREFIX_CACHED);
    places.insert(answer.response.timeline().decode_worker());
  }
  EXPECT_TRUE(places.contains(c.address())) << "it has had the fewest";
}

// T66: what the worker itself has seen of its loads counts.
TEST_F(RouterTest, APrefixThatTheWorkerLoadsSlowlyCountsAsNothing) {
  v1::WorkerRates::TierRate& rate = *decode_->description.mutable_rates()->add_tiers();
  rate.set_tier(v1::KV_TIER_HOST);
  rate.set_bytes_per_second(1);
  decode_->Report(Holds(v1::KV_TIER_HOST, BytesOf(BlocksOf(Model(), 600))));
  StartAndAwait();
  ASSERT_TRUE(WaitUntil([this] { return Status().prefix_index().entries() == 600 / 16; }));
  // The router fits costs about every second.
  EXPECT_TRUE(WaitUntil([this] {
    const Answer answer = Complete(Prompt(600));
    return answer.status.ok() &&
           answer.response.timeline().reason() != v1::ROUTE_REASON_PREFIX_CACHED;
  }));
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
