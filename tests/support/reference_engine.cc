#include "tests/support/reference_engine.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "worker/worker_core.h"

namespace baton {
namespace {

// Keeps the tokens of one sequence. Thread-safe.
class TokenCollector final : public TokenSink {
 public:
  void OnToken(const SelectedToken& token) override {
    absl::MutexLock lock(&mutex_);
    tokens_.push_back(token.token.value());
  }
  void OnEnd(const SequenceEnd& end) override {
    absl::MutexLock lock(&mutex_);
    end_ = end;
  }

  absl::StatusOr<Tokens> WaitForEnd() {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); };
    mutex_.Await(absl::Condition(&ended));
    if (!end_->status.ok()) {
      return end_->status;
    }
    return tokens_;
  }

 private:
  absl::Mutex mutex_;
  Tokens tokens_ ABSL_GUARDED_BY(mutex_);
  std::optional<SequenceEnd> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReferenceEngine>> ReferenceEngine::Start(const TestModel& model,
                                                                        std::size_t kv_pool_bytes) {
  std::unique_ptr<ReferenceEngine> reference(new ReferenceEngine());
  ASSIGN_OR_RETURN(reference->checkpoint_, Checkpoint::Open(model.path, model.cache));
  ASSIGN_OR_RETURN(reference->backend_, CreateCpuBackend({}));
  const Checkpoint& checkpoint = *reference->checkpoint_;
  reference->validator_ =
      std::make_unique<RequestValidator>(checkpoint, checkpoint.config().name, ZoneRules{});
  ASSIGN_OR_RETURN(reference->engine_,
                   Engine::Create({.kv_pool_bytes = kv_pool_bytes, .prefix_cache = false},
                                  checkpoint, *reference->backend_));
  return reference;
}

absl::StatusOr<v1::SequenceSpec> ReferenceEngine::SpecOf(const v1::CompleteRequest& request) const {
  ASSIGN_OR_RETURN(ValidatedRequest valid, validator_->Validate(request));
  return std::move(valid.sequence);
}

absl::StatusOr<Tokens> ReferenceEngine::Generate(const v1::CompleteRequest& request) {
  ASSIGN_OR_RETURN(const v1::SequenceSpec spec, SpecOf(request));
  ASSIGN_OR_RETURN(SequenceRequest sequence, MakeSequenceRequest(spec));
  const auto collector = std::make_shared<TokenCollector>();
  sequence.request_id = "reference";
  sequence.sink = collector;
  RETURN_IF_ERROR(engine_->Submit(std::move(sequence)).status());
  return collector->WaitForEnd();
}

}  // namespace baton
