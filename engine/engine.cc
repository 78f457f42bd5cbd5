#include "engine/engine.h"

#include <algorithm>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/failpoint.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton {
namespace {

// Upper bound on how long an idle engine sleeps: deadlines of waiting sequences are looked at this
// often.
constexpr Duration kIdleTick = std::chrono::milliseconds(100);
constexpr Duration kEmptyTick = std::chrono::seconds(1);  // no sequence, no deadline

}  // namespace

PinnedBlocks::~PinnedBlocks() {
  if (lease_.size() > 0) {
    engine_->ReturnLease(std::move(lease_));
  }
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       const Checkpoint& checkpoint,
                                                       Backend& backend) {
  const ModelConfig& config = checkpoint.config();
  ASSIGN_OR_RETURN(const MemoryBudget before, backend.Memory());
  MemoryNeeds needs = NeedsOf(config, options.limits.max_batch_tokens,
                              options.limits.max_sequences + options.limits.max_logprob_rows);
  absl::StatusOr<Parts> parts = MakeParts(options, checkpoint, backend, needs);
  if (absl::IsResourceExhausted(parts.status())) {
    return absl::ResourceExhaustedError(
        absl::StrCat(std::string(parts.status().message()), " (needed: ", Describe(needs),
                     "; free at the start: ", BytesText(before.free_bytes), ")"));
  }
  RETURN_IF_ERROR(parts.status());
  return std::unique_ptr<Engine>(
      new Engine(options, checkpoint, backend, *std::move(parts),
                 backend.LayoutFor(config.layers, config.kv_heads, config.head_dim)));
}

absl::StatusOr<Engine::Parts> Engine::MakeParts(const EngineOptions& options,
                                                const Checkpoint& checkpoint,
                                                Backend& backend,
                                                MemoryNeeds& needs) {
  const ModelConfig& config = checkpoint.config();
  const KvLayout layout = backend.LayoutFor(config.layers, config.kv_heads, config.head_dim);
  const auto allocate_pool =
      [&](std::size_t bytes) -> absl::StatusOr<std::unique_ptr<DeviceMemory>> {
    needs.kv_pool = bytes / layout.block_bytes() * layout.block_bytes();
    if (needs.kv_pool == 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "kv-pool-size of ", bytes, " bytes holds no block of ", layout.block_bytes(), " bytes"));
    }
    return options.allocate_pool ? options.allocate_pool(needs.kv_pool)
                                 : backend.Allocate(needs.kv_pool);
  };
  // The pool's pages are touched while the weights are read: where the system is slow to hand out
  // memory, that is most of the start.
  std::future<absl::StatusOr<std::unique_ptr<DeviceMemory>>> pool;
  if (options.kv_pool_bytes.has_value()) {
    pool = std::async(std::launch::async, allocate_pool, *options.kv_pool_bytes);
  }
  absl::StatusOr<std::unique_ptr<Transformer>> transformer = Transformer::Load(
      checkpoint, backend,
      {.rows = options.limits.max_batch_tokens,
       .logit_rows = options.limits.max_sequences + options.limits.max_logprob_rows});
  absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = nullptr;
  if (pool.valid()) {
    memory = pool.get();  // in any case: it writes to `needs`
  }
  ASSIGN_OR_RETURN(const MemoryBudget budget, backend.Memory());
  needs.workspace = budget.workspace_bytes;
  RETURN_IF_ERROR(transformer.status());
  needs.weights =
      std::max(needs.weights, (*transformer)->weight_bytes());  // as the backend keeps them
  RETURN_IF_ERROR(memory.status());
  if (*memory == nullptr) {
    ASSIGN_OR_RETURN(memory, allocate_pool(budget.default_pool_bytes));
  }
  return Parts{.transformer = *std::move(transformer), .pool_memory = *std::move(memory)};
}

Engine::Engine(const EngineOptions& options,
               const Checkpoint& checkpoint,
               Backend& backend,
               Parts parts,
               const KvLayout& layout)
    : options_(options),
      config_(checkpoint.config()),
      backend_(backend),
      transformer_(std::move(parts.transformer)),
      pool_memory_(std::move(parts.pool_memory)),
      pool_view_(MakeKvPoolView(pool_memory_->data(),
                                static_cast<int>(pool_memory_->size_bytes() / layout.block_bytes()),
                                layout)),
      identity_({.model_fingerprint = checkpoint.fingerprint(),
                 .tokenizer_fingerprint = checkpoint.tokenizer().fingerprint(),
                 .kv = layout,
                 .arithmetic = std::string(backend.arithmetic()),
                 .rope_base = config_.rope_base,
                 .rms_epsilon = config_.rms_epsilon}),
      pool_(pool_view_.blocks),
      cache_(options.prefix_cache ? std::make_unique<PrefixCache>(pool_, options.cache_observer)
                                  : nullptr),
      mailbox_(static_cast<std::size_t>(4 * (options.max_waiting + options.limits.max_sequences))) {
  PublishLoad();
  thread_ = std::jthread([this] { Run(); });
}

Engine::~Engine() {
  mailbox_.Close();
  thread_.join();
}

absl::StatusOr<SequenceId> Engine::Submit(SequenceRequest request) {
  const auto prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t most_tokens = prompt_tokens + request.max_tokens;
  if (prompt_tokens == 0 || request.max_tokens < 1 || most_tokens > config_.context_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a prompt of ", prompt_tokens, " tokens and ", request.max_tokens,
                     " new ones do not fit the context of ", config_.context_tokens));
  }
  for (const TokenId token : request.prompt) {
    if (static_cast<std::int64_t>(token.value()) >= config_.vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token.value(), " is not in the vocabulary"));
    }
  }
  if (BlocksForTokens(static_cast<int>(most_tokens)) > pool_.total()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a prompt of ", prompt_tokens, " tokens and ", request.max_tokens,
                     " new ones need ", BlocksForTokens(static_cast<int>(most_tokens)),
                     " blocks, the whole KV pool has ", pool_.total()));
  }
  if (live_.fetch_add(1) >= options_.max_waiting + options_.limits.max_sequences) {
    live_.fetch_sub(1);
    return absl::ResourceExhaustedError("the engine's queue is full");
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = SequenceId(next_id_.fetch_add(1));
  sequence->importing = request.kind == SequenceKind::kImport;
  sequence->tokens = request.prompt;
  sequence->submitted = options_.clock->Now();
  if (options_.prefix_cache) {
    sequence->hashes.push_back(RootHash({.model_fingerprint = identity_.model_fingerprint,
                                         .tokenizer_fingerprint = identity_.tokenizer_fingerprint,
                                         .cache_salt = request.cache_salt,
                                         .zone = request.zone}));
  }
  sequence->request = std::move(request);
  sequence->BlockHashes();  // on this thread, not on the engine's
  const SequenceId id = sequence->id;
  const absl::Status posted = mailbox_.Push(
      [this, added = std::move(sequence)]() mutable { sequences_.push_back(std::move(added)); });
  if (!posted.ok()) {
    live_.fetch_sub(1);
    return posted;
  }
  return id;
}

void Engine::Cancel(SequenceId id, absl::Status why) {
  {
    absl::MutexLock lock(&cancelling_mutex_);
    cancelling_.insert(id);
  }
  Post([this, id, why = std::move(why)]() mutable {
    {
      absl::MutexLock lock(&cancelling_mutex_);
      cancelling_.erase(id);
    }
    if (Sequence* sequence = Find(id); sequence != nullptr && !sequence->ended) {
      End(*sequence, std::move(why));
    }
  });
}

void Engine::GiveFirstToken(SequenceId id,
                            SelectedToken token,
                            std::vector<SelectedToken> prompt_logprobs) {
  WithSequence(id, [this, token = std::move(token),
                    prompt = std::move(prompt_logprobs)](Sequence& sequence) mutable {
    if (sequence.importing && sequence.output_tokens() == 0) {
      sequence.prompt_logprobs = std::move(prompt);
      AppendToken(sequence, token);
    }
  });
}

void Engine::Adopt(SequenceId id) {
  WithSequence(id, [this](Sequence& sequence) {
    BATON_CHECK(sequence.phase == SequencePhase::kImporting && sequence.output_tokens() == 1);
    sequence.end.adopted = options_.clock->Now();
    sequence.importing = false;
    sequence.phase = SequencePhase::kRunning;
    sequence.computed = sequence.prompt_tokens();
    RegisterBlocks(sequence);
    EndIfComplete(sequence);
    HitFailpoint("decode.kAdopted").IgnoreError();
  });
}

void Engine::ResumeLocally(SequenceId id, int valid_blocks) {
  WithSequence(id, [this, valid_blocks](Sequence& sequence) {
    sequence.importing = false;
    EndIfComplete(sequence);
    if (!sequence.ended) {
      Replace(sequence, valid_blocks);
    }
  });
}

void Engine::RenewImport(SequenceId id, int valid_blocks) {
  WithSequence(id, [this, valid_blocks](Sequence& sequence) {
    BATON_CHECK(sequence.importing);
    Replace(sequence, valid_blocks);
  });
}

void Engine::ReturnLease(BlockLease lease) {
  // On refusal the message is destroyed here with the lease in it. The engine thread has ended by
  // then, or is about to without touching the pool again.
  Post([returned = std::move(lease)]() mutable { returned.Release(); });
}

EngineLoad Engine::load() const {
  absl::MutexLock lock(&load_mutex_);
  return load_;
}

std::uint64_t Engine::signs_of_life() const {
  return turns_.load(std::memory_order_relaxed) +
         (options_.profile == nullptr ? 0 : options_.profile->operations_begun());
}

void Engine::Post(Message message) {
  mailbox_.PushEnding(std::move(message)).IgnoreError();
}

void Engine::WithSequence(SequenceId id, absl::AnyInvocable<void(Sequence&)> action) {
  Post([this, id, action = std::move(action)]() mutable {
    if (Sequence* sequence = Find(id); sequence != nullptr && !sequence->ended) {
      action(*sequence);
    }
  });
}

Engine::Sequence* Engine::Find(SequenceId id) {
  // Ids grow with age, except that two threads may submit in one order and post in the other.
  for (const auto& sequence : sequences_) {
    if (sequence->id == id) {
      return sequence.get();
    }
  }
  return nullptr;
}

void Engine::Run() {
  while (!mailbox_.closed()) {
    turns_.fetch_add(1, std::memory_order_relaxed);
    HandleMessages();
    EndOverdue();
    if (HasWork()) {
      Step();
    }
    RemoveEnded();
    PublishLoad();
  }
  for (const auto& sequence : sequences_) {
    End(*sequence, absl::UnavailableError("the engine is shutting down"));
  }
  sequences_.clear();
  // Leases that come back late are in here; they must be gone before the pool.
  for (Message& message : mailbox_.PopAll(absl::ZeroDuration())) {
    message();
  }
  RemoveEnded();
}

void Engine::HandleMessages() {
  const bool busy = HasWork();
  if (sequences_.empty() && !idle_checked_) {
    idle_checked_ = true;
    absl::Status status = pool_.CheckInvariants();
    if (cache_ != nullptr) {
      status.Update(cache_->CheckInvariants());
    }
    if (!status.ok()) {
      LogEvent(LogLevel::kError, "pool.invariant_broken", {{"status", status}});
    }
  }
  const Duration wait = busy ? Duration::zero() : sequences_.empty() ? kEmptyTick : kIdleTick;
  for (Message& message : mailbox_.PopAll(absl::FromChrono(wait))) {
    message();
    idle_checked_ = false;
  }
}

bool Engine::HasWork() const {
  return std::any_of(sequences_.begin(), sequences_.end(), [](const auto& sequence) {
    return !sequence->ended && sequence->phase != SequencePhase::kImporting;
  });
}

void Engine::EndOverdue() {
  const TimePoint now = options_.clock->Now();
  for (const auto& sequence : sequences_) {
    if (!sequence->ended && sequence->request.deadline.has_value() &&
        now >= *sequence->request.deadline) {
      End(*sequence, absl::DeadlineExceededError("the request's deadline passed in the engine"));
    }
  }
}

void Engine::Step() {
  step_ = {.start = options_.clock->Now()};
  if (options_.profile != nullptr) {
    options_.profile->Reset();
  }
  const StepPlan plan = PlanStep(options_.limits, pool_.free(), MakeViews());
  Apply(plan);
  NotePlan(plan);
  if (!plan.rows.empty()) {
    Compute(plan);
  } else if (plan.admit.empty() && plan.preempt.empty()) {
    // Everything waits for blocks that a transfer still holds: sleep until something changes.
    for (Message& message : mailbox_.PopAll(absl::FromChrono(kIdleTick))) {
      message();
    }
    return;  // not a step
  }
  ReportStep();
}

void Engine::Replace(Sequence& sequence, int valid_blocks) {
  sequence.lease.Truncate(std::min(valid_blocks, sequence.lease.size()));
  // At least one token is left to compute: the next one is sampled from it.
  sequence.computed = std::min(sequence.lease.size() * kBlockTokens, sequence.known() - 1);
  sequence.registered = std::min(sequence.registered, sequence.lease.size());
  sequence.phase = SequencePhase::kWaiting;
}

void Engine::AppendToken(Sequence& sequence, const SelectedToken& selected) {
  if (sequence.output_tokens() == 0 && sequence.admitted.has_value() && !sequence.importing) {
    sequence.end.prefill = options_.clock->Now() - *sequence.admitted;
  }
  if (sequence.wants_prompt_logprobs()) {
    sequence.request.sink->OnPromptLogprobs(std::move(sequence.prompt_logprobs));
  }
  sequence.tokens.push_back(selected.token);
  sequence.request.sink->OnToken(selected);
  const bool awaited =
      sequence.importing && std::ranges::any_of(sequences_, [&sequence](const auto& other) {
        return !other->ended && other->request.fork_of == sequence.id;
      });
  if (!awaited) {  // else it ends when its KV has come, which its forks share
    EndIfComplete(sequence);
  }
}

void Engine::EndIfComplete(Sequence& sequence) {
  if (sequence.output_tokens() == 0) {
    return;
  }
  const std::vector<TokenId>& stops = sequence.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), sequence.tokens.back()) != stops.end()) {
    End(sequence, absl::OkStatus(), FinishReason::kStop);
  } else if (sequence.output_tokens() >= sequence.request.max_tokens) {
    End(sequence, absl::OkStatus(), FinishReason::kLength);
  } else if (sequence.request.kind == SequenceKind::kPrefillOnly) {
    End(sequence, absl::OkStatus());
  }
}

void Engine::End(Sequence& sequence, absl::Status status, FinishReason reason) {
  if (sequence.ended) {
    return;
  }
  sequence.ended = true;
  sequence.lease.Release();
  sequence.end.status = std::move(status);
  sequence.end.reason = reason;
  sequence.request.sink->OnEnd(sequence.end);
  live_.fetch_sub(1);
}

void Engine::RemoveEnded() {
  std::erase_if(sequences_, [](const auto& sequence) { return sequence->ended; });
}

void Engine::NotePlan(const StepPlan& plan) {
  step_.scheduling = options_.clock->Now() - step_.start;
  if (options_.profile != nullptr) {
    step_.scheduling_operations = options_.profile->times().total();
  }
  step_.preempted = static_cast<int>(plan.preempt.size());
  for (const StepPlan::Rows& rows : plan.rows) {
    const Sequence& sequence = *Find(rows.id);
    const int in_prompt = std::clamp(sequence.prompt_tokens() - sequence.computed, 0, rows.count);
    step_.prefill_rows += in_prompt;
    step_.decode_rows += rows.count - in_prompt;
    if (rows.count > in_prompt) {
      ++step_.decode_sequences;
      step_.decode_context_tokens += static_cast<std::uint64_t>(sequence.known());
    }
  }
}

void Engine::ReportStep() {
  step_.duration = options_.clock->Now() - step_.start;
  step_.free_blocks = pool_.free();
  for (const auto& sequence : sequences_) {
    if (!sequence->ended) {
      (sequence->phase == SequencePhase::kWaiting ? step_.waiting : step_.running) += 1;
    }
  }
  if (options_.profile != nullptr) {
    step_.operations = options_.profile->times();
    step_.calls = options_.profile->calls();
  }
  for (StepObserver* observer : options_.step_observers) {
    observer->OnStep(step_);
  }
}

EngineLoad Engine::CountLoad() const {
  EngineLoad load{.total_blocks = pool_.total(),
                  .free_blocks = pool_.free(),
                  .cached_blocks = pool_.kept(),
                  .prefilled_tokens = prefilled_tokens_,
                  .decoded_tokens = decoded_tokens_,
                  .prefix_query_tokens = prefix_query_tokens_,
                  .prefix_hit_tokens = prefix_hit_tokens_};
  for (const auto& sequence : sequences_) {
    (sequence->phase == SequencePhase::kWaiting ? load.waiting : load.running) += 1;
    if (sequence->decodes()) {
      ++load.decoding;
      load.decoding_context_tokens += static_cast<std::uint64_t>(sequence->known());
    } else {
      load.queued_prefill_tokens += static_cast<std::uint64_t>(sequence->tokens_to_compute());
    }
  }
  return load;
}

void Engine::PublishLoad() {
  const EngineLoad load = CountLoad();
  absl::MutexLock lock(&load_mutex_);
  load_ = load;
}

}  // namespace baton
