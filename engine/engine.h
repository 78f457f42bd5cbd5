#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/kv_layout.h"
#include "common/mailbox.h"
#include "engine/block_pool.h"
#include "engine/cache_observer.h"
#include "engine/live_sequence.h"
#include "engine/memory_needs.h"
#include "engine/prefix_cache.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step_statistics.h"
#include "engine/transformer.h"
#include "kernels/ops.h"
#include "kernels/profiled_backend.h"
#include "model/checkpoint.h"

namespace baton {

struct EngineOptions {
  // Absent: what the backend can spare once the weights are there.
  std::optional<std::size_t> kv_pool_bytes = std::size_t{2} << 30;
  SchedulerLimits limits;
  int max_waiting = 1024;    // submitted and not admitted; one more is refused
  bool prefix_cache = true;  // keep finished blocks for prompts that begin like them
  const Clock* clock = &Clock::System();
  // Memory for the pool; empty: the backend's own. Called once, on a thread of its own.
  std::function<absl::StatusOr<std::unique_ptr<DeviceMemory>>(std::size_t bytes)> allocate_pool;
  // Borrowed, must outlive the engine.
  std::vector<StepObserver*> step_observers;
  CacheObserver* cache_observer = nullptr;  // of the prefix cache; null: nobody listens
  // The backend given to Create, when it takes the time of its operations: observers are told.
  // Null: times of operations are zero.
  ProfiledBackend* profile = nullptr;
};

// Snapshot of an engine's pool and load.
struct EngineLoad {
  int total_blocks = 0;
  int free_blocks = 0;    // cached ones that nobody pins among them
  int cached_blocks = 0;  // hold content, nobody pins them
  int waiting = 0;
  int running = 0;                     // admitted, importing ones included
  std::uint64_t prefilled_tokens = 0;  // prompt tokens computed since start, recomputation included
  std::uint64_t decoded_tokens = 0;    // tokens sampled since start
  std::uint64_t prefix_query_tokens = 0;  // prompt tokens looked up in the prefix cache
  std::uint64_t prefix_hit_tokens = 0;    // of these, found
  // Tokens that waiting and running sequences have yet to compute here before they decode. A
  // waiting one counts without the prefix that it was last seen to find in the cache.
  std::uint64_t queued_prefill_tokens = 0;
  int decoding = 0;                           // of the running ones
  std::uint64_t decoding_context_tokens = 0;  // of these, together
};

// Runs sequences of one model on one backend: one thread owns pool, sequences and scheduler, and
// makes a step at a time.
//
// A sequence's tokens depend on its request alone: not on what else runs, nor on whether its KV was
// computed here.
//
// Thread-safe: every method but Create posts to the engine thread. Sinks and hooks are called on
// that thread.
class Engine {
 public:
  // Loads the weights, allocates the pool and starts the thread. RESOURCE_EXHAUSTED when the pool
  // cannot be had or holds less than one block; where memory was short it says what each part needs
  // and what was free. Borrows both, which must outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        const Checkpoint& checkpoint,
                                                        Backend& backend);

  // Ends every sequence with UNAVAILABLE. Every PinnedBlocks must be gone.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const EngineIdentity& identity() const { return identity_; }
  std::byte* pool_base() const { return pool_memory_->data(); }  // the backend's memory
  int pool_blocks() const { return pool_.total(); }

  // INVALID_ARGUMENT for a request that no engine could run, RESOURCE_EXHAUSTED when the queue is
  // full or the pool could never hold prompt and max_tokens; then the sink is not used.
  absl::StatusOr<SequenceId> Submit(SequenceRequest request);

  // Ends the sequence with `why` unless it has ended. A step in which nobody else has a part stops
  // at its next layer.
  void Cancel(SequenceId id, absl::Status why);

  // Import: the first token, sampled elsewhere, and the prompt's log probabilities if they were
  // asked for. Emitted at once; may end the sequence, unless forks of it wait for its KV: then it
  // ends with Adopt or ResumeLocally.
  void GiveFirstToken(SequenceId id,
                      SelectedToken token,
                      std::vector<SelectedToken> prompt_logprobs = {});
  // Import: all blocks of the prompt hold their final values. REQUIRES: the first token was given.
  void Adopt(SequenceId id);
  // Import: give up on the source. The first `valid_blocks` blocks keep their values, the others
  // are replaced (a transport may still write to them) and computed here.
  void ResumeLocally(SequenceId id, int valid_blocks);
  // Import: another source will be tried. As ResumeLocally, but the blocks that are replaced come
  // by a further OnAdmitted.
  void RenewImport(SequenceId id, int valid_blocks);

  void ReturnLease(BlockLease lease);

  EngineLoad load() const;

  // Grows as long as the engine thread does anything: with every operation of a step where there is
  // a profile, else with every step, and once a second when there is nothing to do.
  std::uint64_t signs_of_life() const;

 private:
  using Message = absl::AnyInvocable<void()>;
  using Sequence = LiveSequence;
  // What a start makes.
  struct Parts {
    std::unique_ptr<Transformer> transformer;
    std::unique_ptr<DeviceMemory> pool_memory;
  };

  Engine(const EngineOptions& options,
         const Checkpoint& checkpoint,
         Backend& backend,
         Parts parts,
         const KvLayout& layout);

  static absl::StatusOr<Parts> MakeParts(const EngineOptions& options,
                                         const Checkpoint& checkpoint,
                                         Backend& backend,
                                         MemoryNeeds& needs);

  void Post(Message message);
  void Run();
  void HandleMessages();
  bool HasWork() const;
  void EndOverdue();
  void Step();

  // In engine_blocks.cc.
  std::vector<SequenceView> MakeViews();
  bool FindHit(Sequence& sequence, const absl::flat_hash_set<PrefixHash>& coming);
  SequenceView ViewOf(const Sequence& sequence) const;
  void Apply(const StepPlan& plan);
  BlockLease PinHit(const Sequence& sequence);
  void Admit(Sequence& sequence, int blocks, BlockLease hit);
  void TakeHit(Sequence& sequence, BlockLease hit, const BlockLease& fresh);
  void RegisterBlocks(Sequence& sequence);

  // In engine_compute.cc.
  void Compute(const StepPlan& plan);
  bool IsAbandoned(const StepPlan& plan);
  // A row of a step's batch whose logits are wanted.
  struct LogitRow {
    int row = 0;
    Sequence* sequence = nullptr;
    std::optional<TokenId> prompt_token;  // its log probability is wanted; absent: a new token
  };
  std::vector<LogitRow> LogitRows(const StepPlan& plan);
  ForwardBatch MakeBatch(const StepPlan& plan, std::span<const LogitRow> wanted);
  void ReportLayer(const StepPlan& plan, LayerIndex layer);
  void FinishStep(const StepPlan& plan,
                  std::span<const LogitRow> wanted,
                  TensorView<const float> logits);
  void TakeSample(Sequence& sequence, bool of_prompt, Sample sample);

  void Replace(Sequence& sequence, int valid_blocks);
  void AppendToken(Sequence& sequence, const SelectedToken& selected);
  void EndIfComplete(Sequence& sequence);
  void End(Sequence& sequence, absl::Status status, FinishReason reason = FinishReason::kStop);
  void RemoveEnded();
  void NotePlan(const StepPlan& plan);
  void ReportStep();
  EngineLoad CountLoad() const;
  void PublishLoad();
  Sequence* Find(SequenceId id);
  void WithSequence(SequenceId id, absl::AnyInvocable<void(Sequence&)> action);

  const EngineOptions options_;
  const ModelConfig config_;
  Backend& backend_;
  const std::unique_ptr<Transformer> transformer_;
  const std::unique_ptr<DeviceMemory> pool_memory_;
  const KvPoolView pool_view_;
  EngineIdentity identity_;

  // Engine thread only.
  BlockPool pool_;
  std::unique_ptr<PrefixCache> cache_;                // null when switched off
  std::vector<std::unique_ptr<Sequence>> sequences_;  // oldest first
  std::uint64_t prefilled_tokens_ = 0;
  std::uint64_t decoded_tokens_ = 0;
  std::uint64_t prefix_query_tokens_ = 0;
  std::uint64_t prefix_hit_tokens_ = 0;
  StepStatistics step_;  // of the step under way
  bool idle_checked_ = true;

  Mailbox<Message> mailbox_;
  std::atomic<std::uint64_t> turns_{0};  // of the thread's loop: a counter for signs_of_life
  std::atomic<std::uint64_t> next_id_{1};
  std::atomic<int> live_{0};  // submitted and not ended
  absl::Mutex cancelling_mutex_;
  absl::flat_hash_set<SequenceId> cancelling_
      ABSL_GUARDED_BY(cancelling_mutex_);  // whose end is in the mailbox
  mutable absl::Mutex load_mutex_;
  EngineLoad load_ ABSL_GUARDED_BY(load_mutex_);
  std::jthread thread_;
};

}  // namespace baton
