#include "tests/support/in_process_pair.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/checkpoint.h"

namespace baton {
namespace {

// Keeps what one generation says. Thread-safe.
class OutcomeCollector final : public GenerationObserver {
 public:
  void OnProgress(const GenerationResult&) override {}
  void OnToken(TokenId id) override {
    absl::MutexLock lock(&mutex_);
    outcome_.tokens.push_back(id.value());
  }
  void OnFinished(const GenerationResult& result) override {
    absl::MutexLock lock(&mutex_);
    outcome_.finished = result.finished;
    end_ = absl::OkStatus();
  }
  void OnError(absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    end_ = std::move(status);
  }

  absl::StatusOr<InProcessPair::Outcome> WaitForEnd() {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); };
    mutex_.Await(absl::Condition(&ended));
    if (!end_->ok()) {
      return *end_;
    }
    return outcome_;
  }

 private:
  absl::Mutex mutex_;
  InProcessPair::Outcome outcome_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<WorkerCore>> StartCore(const TestModel& model,
                                                      v1::Role role,
                                                      TransportFactory transport,
                                                      std::size_t kv_pool_bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                   Checkpoint::Open(model.path, model.cache));
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, CreateCpuBackend({}));
  return WorkerCore::Create({.role = role, .engine = {.kv_pool_bytes = kv_pool_bytes}},
                            std::move(checkpoint), std::move(backend), std::move(transport));
}

bool HoldsNothing(const v1::EngineLoad& load) {
  return load.free_blocks() == load.total_blocks() && load.waiting_sequences() == 0 &&
         load.running_sequences() == 0 && load.open_handoffs() == 0 &&
         load.quarantined_blocks() == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<InProcessPair>> InProcessPair::Start(const TestModel& model,
                                                                    Transports transports,
                                                                    std::size_t kv_pool_bytes) {
  std::unique_ptr<InProcessPair> pair(new InProcessPair());
  ASSIGN_OR_RETURN(pair->prefill_, StartCore(model, v1::ROLE_PREFILL, std::move(transports.prefill),
                                             kv_pool_bytes));
  ASSIGN_OR_RETURN(pair->decode_,
                   StartCore(model, v1::ROLE_DECODE, std::move(transports.decode), kv_pool_bytes));
  const Checkpoint& checkpoint = pair->decode_->checkpoint();
  pair->validator_ = std::make_unique<RequestValidator>(checkpoint, checkpoint.config().name);
  pair->service_ = std::make_unique<PrefillService>(*pair->prefill_);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(pair->service_.get());
  pair->server_ = builder.BuildAndStart();
  if (pair->server_ == nullptr) {
    return absl::UnavailableError("cannot listen on the loopback interface");
  }
  pair->address_ = absl::StrCat("127.0.0.1:", port);
  ASSIGN_OR_RETURN(pair->client_, PrefillClient::Create({}));
  pair->sessions_ =
      std::make_unique<DecodeSessions>(*pair->decode_, *pair->client_, HandoffTimes{});
  return pair;
}

InProcessPair::~InProcessPair() {
  sessions_.reset();
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now());
  }
}

absl::StatusOr<InProcessPair::Outcome> InProcessPair::Generate(const v1::CompleteRequest& request,
                                                               bool forced) {
  ASSIGN_OR_RETURN(const ValidatedRequest valid, validator_->Validate(request));
  v1::PrefillCandidate candidate;
  candidate.set_address(address_);
  candidate.set_instance_id(std::string(prefill_->instance().AsBytes()));
  const auto collector = std::make_shared<OutcomeCollector>();
  const std::shared_ptr<Generation> generation = sessions_->Start({.request_id = valid.request_id,
                                                                   .sequence = valid.sequence,
                                                                   .prefill = {candidate},
                                                                   .forced = forced,
                                                                   .deadline = TimePoint::max()},
                                                                  collector);
  return collector->WaitForEnd();
}

bool InProcessPair::IsIdle() const {
  return HoldsNothing(prefill_->Describe().load()) && HoldsNothing(decode_->Describe().load());
}

}  // namespace baton
