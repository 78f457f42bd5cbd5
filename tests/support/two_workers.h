#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "decode_worker/decode_sessions.h"
#include "decode_worker/prefill_client.h"
#include "kernels/backends.h"
#include "kvtransfer/inproc/inproc_transport.h"
#include "prefill_worker/prefill_service.h"
#include "tests/support/wait_until.h"
#include "worker/device_staging_copier.h"
#include "worker/worker_core.h"

namespace baton {

// Keeps what one generation says and checks that its end is the last word. Thread-safe.
class RecordingObserver final : public GenerationObserver {
 public:
  void OnProgress(const GenerationResult&) override { CheckOpen(); }
  void OnPromptLogprobs(v1::Logprobs logprobs) override {
    CheckOpen();
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(prompt_logprobs_.has_value()) << "they came twice";
    EXPECT_TRUE(choices_.empty()) << "they came after a token";
    prompt_logprobs_ = std::move(logprobs);
  }
  void OnToken(GeneratedToken token) override {
    CheckOpen();
    absl::MutexLock lock(&mutex_);
    Choice& choice = choices_[token.choice];
    EXPECT_FALSE(choice.end.has_value()) << "a token came after the end of its choice";
    choice.tokens.push_back(token.id.value());
    if (token.logprob.has_value()) {
      choice.logprobs.push_back(*std::move(token.logprob));
    }
  }
  void OnChoiceEnd(std::uint32_t choice, v1::FinishReason reason) override {
    CheckOpen();
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(choices_[choice].end.has_value()) << "a choice ended twice";
    choices_[choice].end = reason;
  }
  void OnFinished(const GenerationResult& result) override {
    CheckOpen();
    absl::MutexLock lock(&mutex_);
    result_ = result;
    ended_ = true;
  }
  void OnError(absl::Status status) override {
    CheckOpen();
    absl::MutexLock lock(&mutex_);
    status_ = std::move(status);
    ended_ = true;
  }

  absl::Status WaitForEnd() {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&ended_), absl::Seconds(60)));
    return status_;
  }
  // False when the generation ended with fewer.
  bool WaitForTokens(std::size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return ended_ || choices_[0].tokens.size() >= count;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(60)));
    return choices_[0].tokens.size() >= count;
  }
  std::vector<std::uint32_t> tokens(std::uint32_t choice = 0) {
    absl::MutexLock lock(&mutex_);
    return choices_[choice].tokens;
  }
  std::vector<v1::TokenLogprob> logprobs(std::uint32_t choice = 0) {
    absl::MutexLock lock(&mutex_);
    return choices_[choice].logprobs;
  }
  // Absent for the last choice that ended, whose end is the result's.
  std::optional<v1::FinishReason> choice_end(std::uint32_t choice) {
    absl::MutexLock lock(&mutex_);
    return choices_[choice].end;
  }
  std::optional<v1::Logprobs> prompt_logprobs() {
    absl::MutexLock lock(&mutex_);
    return prompt_logprobs_;
  }
  GenerationResult result() {
    absl::MutexLock lock(&mutex_);
    return result_;
  }

 private:
  void CheckOpen() {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(ended_) << "something came after the end";
  }

  struct Choice {
    std::vector<std::uint32_t> tokens;
    std::vector<v1::TokenLogprob> logprobs;
    std::optional<v1::FinishReason> end;
  };

  absl::Mutex mutex_;
  std::map<std::uint32_t, Choice> choices_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Logprobs> prompt_logprobs_ ABSL_GUARDED_BY(mutex_);
  GenerationResult result_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

inline constexpr std::size_t kTestPoolBytes = 16 << 20;

// Without a prefix cache, so that a prompt may be sent down one path after the other.
inline EngineOptions NodeEngine(std::size_t kv_pool_bytes = kTestPoolBytes) {
  return {.kv_pool_bytes = kv_pool_bytes, .prefix_cache = false};
}

inline std::unique_ptr<WorkerCore> MakeCore(const std::string& model_file,
                                            v1::Role role,
                                            TransportFactory transport,
                                            const EngineOptions& engine,
                                            const std::string& device = "cpu") {
  auto checkpoint = Checkpoint::Open(model_file);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  auto chosen = CreateBackend({.device = device});
  EXPECT_TRUE(chosen.ok()) << chosen.status();
  auto core = WorkerCore::Create(
      {.role = role, .engine = engine, .pool_kind = MemoryKindOf(chosen->device)},
      *std::move(checkpoint), std::move(chosen->backend),
      StageFor(chosen->device, std::move(transport)));
  EXPECT_TRUE(core.ok()) << core.status();
  return *std::move(core);
}

inline bool AllBlocksFree(WorkerCore& core) {
  return WaitUntil([&core] {
    const EngineLoad load = core.engine().load();
    const TransferStats transfer = core.transfer().stats();
    return load.free_blocks == load.total_blocks && transfer.offers == 0 && transfer.fetches == 0 &&
           transfer.quarantined_blocks == 0;
  });
}

// A gRPC service on a free loopback port.
class ServedService {
 public:
  explicit ServedService(grpc::Service* service) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~ServedService() { Stop(); }

  const std::string& address() const { return address_; }
  // Breaks every open call.
  void Stop() {
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now());
      server_.reset();
    }
  }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// A prefill worker in this process.
struct PrefillNode {
  PrefillNode(const std::string& model_file,
              TransportFactory transport,
              const EngineOptions& engine = NodeEngine(),
              const std::string& device = "cpu")
      : core(MakeCore(model_file, v1::ROLE_PREFILL, std::move(transport), engine, device)),
        service(*core),
        served(&service) {}

  v1::PrefillCandidate candidate() const {
    v1::PrefillCandidate candidate;
    candidate.set_address(served.address());
    candidate.set_instance_id(std::string(core->instance().AsBytes()));
    return candidate;
  }

  std::unique_ptr<WorkerCore> core;
  PrefillService service;
  ServedService served;
};

// A decode worker in this process, without its doors.
struct DecodeNode {
  DecodeNode(const std::string& model_file,
             TransportFactory transport,
             HandoffTimes times = {},
             const EngineOptions& engine = NodeEngine(),
             const std::string& device = "cpu")
      : core(MakeCore(model_file, v1::ROLE_DECODE, std::move(transport), engine, device)),
        client(*PrefillClient::Create({})),
        sessions(*core, *client, times) {}

  std::shared_ptr<RecordingObserver> Start(DecodeJob job,
                                           std::shared_ptr<Generation>* generation = nullptr) {
    auto observer = std::make_shared<RecordingObserver>();
    auto started = sessions.Start(std::move(job), observer);
    if (generation != nullptr) {
      *generation = std::move(started);
    }
    return observer;
  }

  std::unique_ptr<WorkerCore> core;
  std::unique_ptr<PrefillClient> client;
  DecodeSessions sessions;
};

// A sequence that `prefill` has to prefill: there is nobody else for it.
inline DecodeJob MakeSplitJob(v1::SequenceSpec sequence, const PrefillNode& prefill) {
  return {.request_id = "split",
          .sequence = std::move(sequence),
          .prefill = {prefill.candidate()},
          .forced = true,
          .deadline = TimePoint::max()};
}

// A greedy or seeded request over the tiny model's vocabulary.
inline DecodeJob MakeJob(int prompt_tokens, int max_tokens, std::uint64_t seed = 1) {
  DecodeJob job{.request_id = "r" + std::to_string(seed),
                .deadline = Clock::System().Now() + std::chrono::seconds(60)};
  for (int i = 0; i < prompt_tokens; ++i) {
    job.sequence.add_prompt(
        3 + static_cast<std::uint32_t>((static_cast<std::uint64_t>(i) * 31 + seed * 17) % 500));
  }
  job.sequence.set_max_tokens(static_cast<std::uint32_t>(max_tokens));
  v1::EngineSampling& sampling = *job.sequence.mutable_sampling();
  sampling.set_temperature(seed % 2 == 0 ? 0.0f : 0.8f);
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  sampling.set_seed(seed);
  return job;
}

}  // namespace baton
