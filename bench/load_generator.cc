#include "bench/load_generator.h"

#include <grpcpp/grpcpp.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "bench/load_stream.h"
#include "bench/machine_limits.h"
#include "common/status_macros.h"
#include "proto/grpc_runtime.h"

namespace baton {
namespace {

constexpr Duration kProgressEvery = std::chrono::seconds(1);
// The system wakes a sleeper late by so much; what is left is spun.
constexpr Duration kSpin = std::chrono::microseconds(60);

v1::CompleteRequest MakeCompleteRequest(const LoadRequest& request,
                                        int hashed_tokens,
                                        const PromptVocabulary& vocabulary) {
  v1::CompleteRequest message;
  const std::vector<std::uint32_t> tokens =
      MakePromptTokens(request.shape, hashed_tokens, vocabulary, false, request.seed);
  message.mutable_tokens()->mutable_ids()->Add(tokens.begin(), tokens.end());
  message.mutable_sampling()->set_temperature(0);
  message.set_max_tokens(static_cast<std::uint32_t>(request.shape.output_tokens));
  message.set_ignore_eos(true);
  message.set_path(request.path);
  return message;
}

// What Run's thread and gRPC's share: how many requests have ended. Thread-safe.
class Open {
 public:
  void Add() { open_.fetch_add(1, std::memory_order_relaxed); }
  // The last thing that a call does with this.
  void End() {
    absl::MutexLock lock(&mutex_);
    open_.fetch_sub(1, std::memory_order_relaxed);
  }
  std::size_t count() const { return open_.load(std::memory_order_relaxed); }
  // Whether all have ended before `patience` is over.
  bool AwaitNone(Duration patience) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(
                                       +[](Open* open) { return open->count() == 0; }, this),
                                   absl::FromChrono(patience));
  }

 private:
  absl::Mutex mutex_;  // lets a waiter sleep; `open_` is written under it when it falls
  std::atomic<std::size_t> open_{0};
};

}  // namespace

struct LoadGenerator::Connection {
  std::shared_ptr<grpc::Channel> channel;  // shared with the stub made from it
  std::unique_ptr<v1::Completions::Stub> stub;
};

namespace {

// The state of one Run.
class Sender {
 public:
  Sender(const LoadGeneratorOptions& options, const Workload& workload, v1::Completions::Stub& stub)
      : options_(options), workload_(workload), stub_(stub) {}

  LoadRun Send() {
    const std::size_t total = workload_.requests.size();
    run_.records.resize(total);
    const double cpu_before = ProcessCpuSeconds();
    start_ = Clock::System().Now();
    next_progress_ = start_ + kProgressEvery;
    for (std::size_t i = 0; i < total; ++i) {
      SendOne(i);
    }
    while (!open_.AwaitNone(std::min<Duration>(kProgressEvery, next_progress_ - Now()))) {
      Report(total);
    }
    for (const RequestRecord& record : run_.records) {
      run_.duration = std::max(run_.duration, record.ended);
    }
    run_.cpu_seconds = ProcessCpuSeconds() - cpu_before;
    return std::move(run_);
  }

 private:
  static TimePoint Now() { return Clock::System().Now(); }

  void SendOne(std::size_t i) {
    const LoadRequest& request = workload_.requests[i];
    RequestRecord& record = run_.records[i];
    record.kind = request.kind;
    record.scheduled = request.shape.arrival;
    record.prompt_tokens = request.shape.prompt_tokens;
    record.token_times.reserve(static_cast<std::size_t>(request.shape.output_tokens));
    // Made ahead of time: a long prompt takes longer to make than to send.
    v1::CompleteRequest message =
        MakeCompleteRequest(request, workload_.hashed_tokens, options_.vocabulary);
    WaitUntil(start_ + record.scheduled, i);
    if (open_.count() >= options_.most_open) {
      record.sent = record.ended = Now() - start_;
      record.status = absl::ResourceExhaustedError(
          absl::StrCat("not sent: ", options_.most_open, " requests were open"));
      ++unsent_;
      return;
    }
    open_.Add();
    auto* stream = new LoadStream(std::move(message), start_, record, [this, &record] {
      if (!record.ok()) {
        failed_.fetch_add(1, std::memory_order_relaxed);
      }
      open_.End();
    });
    stream->Start(stub_, options_.request_timeout);
  }

  void WaitUntil(TimePoint due, std::size_t sent) {
    for (TimePoint now = Now(); now < due; now = Now()) {
      if (now >= next_progress_) {
        Report(sent);
      }
      const TimePoint wake = std::min(due - kSpin, next_progress_);
      if (wake > now) {
        std::this_thread::sleep_until(wake);
      }
    }
  }

  void Report(std::size_t sent) {
    const TimePoint now = Now();
    if (now < next_progress_) {
      return;
    }
    next_progress_ = now + kProgressEvery;
    if (options_.progress) {
      options_.progress({.elapsed = now - start_,
                         .sent = sent,
                         .ended = sent - open_.count(),
                         .failed = unsent_ + failed_.load(std::memory_order_relaxed),
                         .total = workload_.requests.size()});
    }
  }

  const LoadGeneratorOptions& options_;  // the generator's
  const Workload& workload_;             // the caller's of Run
  v1::Completions::Stub& stub_;          // the generator's
  LoadRun run_;
  TimePoint start_;
  TimePoint next_progress_;
  std::size_t unsent_ = 0;
  std::atomic<std::size_t> failed_{0};
  Open open_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LoadGenerator>> LoadGenerator::Create(LoadGeneratorOptions options) {
  KeepGrpcRunning();
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                   MakeChannelCredentials(options.tls));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto connection = std::make_unique<Connection>();
  connection->channel = grpc::CreateCustomChannel(options.server, credentials, arguments);
  connection->stub = v1::Completions::NewStub(connection->channel);
  return std::unique_ptr<LoadGenerator>(
      new LoadGenerator(std::move(options), std::move(connection)));
}

LoadGenerator::LoadGenerator(LoadGeneratorOptions options, std::unique_ptr<Connection> connection)
    : options_(std::move(options)), connection_(std::move(connection)) {}

LoadGenerator::~LoadGenerator() = default;

absl::StatusOr<LoadRun> LoadGenerator::Run(const Workload& workload) {
  if (!connection_->channel->WaitForConnected(std::chrono::system_clock::now() +
                                              options_.request_timeout)) {
    return absl::UnavailableError(absl::StrCat("no connection to ", options_.server));
  }
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds, of this thread
  return Sender(options_, workload, *connection_->stub).Send();
}

}  // namespace baton
