#include "engine/engine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton {
namespace {

// Upper bound on how long an idle engine sleeps: deadlines of waiting sequences are looked at this
// often.
constexpr Duration kIdleTick = std::chrono::milliseconds(100);
constexpr Duration kEmptyTick = std::chrono::seconds(1);  // no sequence, no deadline

// Waiting sequences that one step looks up in the prefix cache, and of these, offers to the
// scheduler: few are admitted in a step, and a herd of equal prompts waits for one of them.
constexpr int kLookups = 64;
constexpr int kCandidates = 8;

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
  const KvLayout layout = backend.LayoutFor(config.layers, config.kv_heads, config.head_dim);
  const std::size_t blocks = options.kv_pool_bytes / layout.block_bytes();
  if (blocks == 0) {
    return absl::ResourceExhaustedError(absl::StrCat("kv-pool-size of ", options.kv_pool_bytes,
                                                     " bytes holds no block of ",
                                                     layout.block_bytes(), " bytes"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Transformer> transformer,
                   Transformer::Load(checkpoint, backend,
                                     {.rows = options.limits.max_batch_tokens,
                                      .logit_rows = options.limits.max_sequences +
                                                    options.limits.max_logprob_rows}));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory,
                   backend.Allocate(blocks * layout.block_bytes()));
  return std::unique_ptr<Engine>(
      new Engine(options, checkpoint, backend, std::move(transformer), std::move(memory), layout));
}

Engine::Engine(const EngineOptions& options,
               const Checkpoint& checkpoint,
               Backend& backend,
               std::unique_ptr<Transformer> transformer,
               std::unique_ptr<DeviceMemory> pool_memory,
               const KvLayout& layout)
    : options_(options),
      config_(checkpoint.config()),
      backend_(backend),
      transformer_(std::move(transformer)),
      pool_memory_(std::move(pool_memory)),
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
      cache_(options.prefix_cache ? std::make_unique<PrefixCache>(pool_) : nullptr),
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
                                         .cache_salt = request.cache_salt}));
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
  });
}

void Engine::ResumeLocally(SequenceId id, int valid_blocks) {
  WithSequence(id, [this, valid_blocks](Sequence& sequence) {
    sequence.importing = false;
    Replace(sequence, valid_blocks);
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

std::vector<SequenceView> Engine::MakeViews() {
  // Blocks that some sequence is computing now: who could share them waits until they are there.
  absl::flat_hash_set<PrefixHash> coming;
  const auto note_coming = [&coming](Sequence& sequence, std::size_t from) {
    const std::span<const PrefixHash> hashes = sequence.BlockHashes();
    coming.insert(hashes.begin() + static_cast<std::ptrdiff_t>(std::min(from, hashes.size())),
                  hashes.end());
  };
  const bool anyone_waits =
      std::ranges::any_of(sequences_, [](const auto& each) { return each->may_share(); });
  for (const auto& sequence : sequences_) {
    if (anyone_waits && !sequence->ended && sequence->prefills()) {
      note_coming(*sequence, static_cast<std::size_t>(sequence->computed / kBlockTokens));
    }
  }
  std::vector<SequenceView> views;
  int lookups = 0;
  int candidates = 0;
  for (const auto& sequence : sequences_) {
    if (sequence->ended) {
      continue;
    }
    if (sequence->may_share()) {
      if (candidates == kCandidates || ++lookups > kLookups || !FindHit(*sequence, coming)) {
        continue;
      }
      ++candidates;
      if (!sequence->importing) {
        note_coming(*sequence, sequence->hit.shared.size());
      }
    }
    views.push_back(ViewOf(*sequence));
  }
  return views;
}

// False when the sequence is better left waiting.
bool Engine::FindHit(Sequence& sequence, const absl::flat_hash_set<PrefixHash>& coming) {
  const Sequence* leader = nullptr;
  if (sequence.request.fork_of.has_value() && sequence.output_tokens() == 0) {
    leader = Find(*sequence.request.fork_of);
    if (leader != nullptr && !leader->ended && !leader->holds_prompt()) {
      return false;
    }
  }
  sequence.hit = FindPrefix(sequence, cache_.get(), leader);
  if (sequence.importing || sequence.wants_prompt_logprobs()) {
    return true;
  }
  const std::span<const PrefixHash> hashes = sequence.BlockHashes();
  const std::size_t next = sequence.hit.shared.size();
  return sequence.hit.copied.has_value() || next >= hashes.size() || !coming.contains(hashes[next]);
}

SequenceView Engine::ViewOf(const Sequence& sequence) const {
  SequenceView view{.id = sequence.id,
                    .phase = sequence.phase,
                    .tokens = sequence.known(),
                    .computed = sequence.computed,
                    .blocks = sequence.lease.size(),
                    .preemptible = sequence.preemptible(),
                    .prompt_logprobs = sequence.wants_prompt_logprobs(),
                    .imports = sequence.importing};
  if (sequence.may_share()) {
    const PrefixHit& hit = sequence.hit;
    const auto is_idle = [this](BlockId block) { return !pool_.IsPinned(block); };
    view.computed = hit.tokens;
    view.cached_blocks = static_cast<int>(hit.shared.size());
    view.idle_cached_blocks = static_cast<int>(std::ranges::count_if(hit.shared, is_idle)) +
                              (hit.copied.has_value() && is_idle(*hit.copied) ? 1 : 0);
  }
  return view;
}

void Engine::Apply(const StepPlan& plan) {
  for (const SequenceId id : plan.preempt) {
    Sequence& sequence = *Find(id);
    LogEvent(LogLevel::kInfo, "sequence.preempted",
             {{"request", sequence.request.request_id}, {"computed", sequence.computed}});
    sequence.lease.Release();
    sequence.computed = 0;
    sequence.registered = 0;
    sequence.phase = SequencePhase::kWaiting;
  }
  // Before anything is leased: that may cost the cache blocks which nobody pins.
  std::vector<BlockLease> hits;
  for (const StepPlan::Blocks& admit : plan.admit) {
    hits.push_back(PinHit(*Find(admit.id)));
  }
  for (const StepPlan::Blocks& grow : plan.grow) {
    std::optional<BlockLease> more = pool_.Lease(grow.count);
    BATON_CHECK(more.has_value());
    Find(grow.id)->lease.Append(*std::move(more));
  }
  for (std::size_t i = 0; i < plan.admit.size(); ++i) {
    Admit(*Find(plan.admit[i].id), plan.admit[i].count, std::move(hits[i]));
  }
}

BlockLease Engine::PinHit(const Sequence& sequence) {
  if (!sequence.may_share()) {
    return {};
  }
  std::vector<BlockId> blocks = sequence.hit.shared;
  if (sequence.hit.copied.has_value()) {
    blocks.push_back(*sequence.hit.copied);
  }
  return pool_.Pin(blocks);
}

void Engine::Admit(Sequence& sequence, int blocks, BlockLease hit) {
  std::optional<BlockLease> fresh = pool_.Lease(blocks);
  BATON_CHECK(fresh.has_value());
  if (sequence.may_share()) {
    TakeHit(sequence, std::move(hit), *fresh);
  }
  const int valid_blocks = sequence.lease.size();
  sequence.lease.Append(*std::move(fresh));
  sequence.phase = sequence.importing ? SequencePhase::kImporting : SequencePhase::kRunning;
  if (!sequence.admitted.has_value()) {
    sequence.admitted = options_.clock->Now();
    sequence.end.queue = *sequence.admitted - sequence.submitted;
    sequence.end.cached_tokens = sequence.hit.tokens;
    prefix_query_tokens_ += static_cast<std::uint64_t>(sequence.prompt_tokens());
    prefix_hit_tokens_ += static_cast<std::uint64_t>(sequence.hit.tokens);
  }
  const bool shares_blocks =
      sequence.importing || sequence.request.kind == SequenceKind::kPrefillOnly;
  if (shares_blocks) {
    BlockLease pin = sequence.lease.Share();
    pin.Truncate(BlocksForTokens(sequence.prompt_tokens()));
    sequence.request.hooks->OnAdmitted(PinnedBlocks(*this, std::move(pin)), valid_blocks);
  }
}

// Begins the sequence's lease with the pinned blocks of its hit; the copied one's content goes to
// the first of `fresh`.
void Engine::TakeHit(Sequence& sequence, BlockLease hit, const BlockLease& fresh) {
  sequence.computed = sequence.hit.tokens;
  sequence.registered = static_cast<int>(sequence.hit.shared.size());
  if (sequence.hit.copied.has_value()) {
    const std::size_t bytes = identity_.kv.block_bytes();
    const absl::Status copied =
        backend_.Copy({.destination = pool_base() + fresh.blocks()[0].value() * bytes,
                       .source = pool_base() + sequence.hit.copied->value() * bytes,
                       .bytes = bytes,
                       .direction = CopyDirection::kDeviceToDevice});
    if (!copied.ok()) {
      // Only this block's tokens have to be computed.
      LogEvent(LogLevel::kError, "block.copy_failed", {{"status", copied}});
      sequence.computed = sequence.registered * kBlockTokens;
    }
    hit.Truncate(sequence.registered);
  }
  sequence.lease = std::move(hit);
  step_.cached_tokens += sequence.computed;
}

void Engine::RegisterBlocks(Sequence& sequence) {
  if (cache_ == nullptr) {
    return;
  }
  const std::span<const PrefixHash> hashes = sequence.BlockHashes();
  for (const int final = sequence.computed / kBlockTokens; sequence.registered < final;
       ++sequence.registered) {
    cache_->Register(sequence.lease, sequence.registered, hashes, sequence.tokens);
  }
}

void Engine::Compute(const StepPlan& plan) {
  const std::vector<LogitRow> wanted = LogitRows(plan);
  const ForwardBatch batch = MakeBatch(plan, wanted);
  const bool reports =
      std::any_of(plan.rows.begin(), plan.rows.end(), [this](const StepPlan::Rows& rows) {
        return Find(rows.id)->request.kind == SequenceKind::kPrefillOnly;
      });
  Transformer::StepHooks hooks{.is_abandoned = [this, &plan] { return IsAbandoned(plan); }};
  if (reports) {  // waiting for the device after each layer is for those who asked
    hooks.on_layer = [this, &plan](LayerIndex layer) { ReportLayer(plan, layer); };
  }
  const absl::StatusOr<TensorView<const float>> logits =
      transformer_->Forward(batch, pool_view_, hooks);
  if (logits.ok()) {
    FinishStep(plan, wanted, *logits);
    return;
  }
  if (absl::IsCancelled(logits.status())) {
    return;  // its sequences end before the next step
  }
  LogEvent(LogLevel::kError, "step.failed", {{"status", logits.status()}, {"rows", batch.rows()}});
  for (const StepPlan::Rows& rows : plan.rows) {
    End(*Find(rows.id), absl::InternalError(absl::StrCat("forward pass: ",
                                                         std::string(logits.status().message()))));
  }
}

// A step of many rows takes a large share of the second in which a cancelled request's blocks must
// be free.
bool Engine::IsAbandoned(const StepPlan& plan) {
  const TimePoint now = options_.clock->Now();
  absl::MutexLock lock(&cancelling_mutex_);
  return std::all_of(plan.rows.begin(), plan.rows.end(), [&](const StepPlan::Rows& rows) {
    const std::optional<TimePoint>& deadline = Find(rows.id)->request.deadline;
    return cancelling_.contains(rows.id) || (deadline.has_value() && now >= *deadline);
  });
}

ForwardBatch Engine::MakeBatch(const StepPlan& plan, std::span<const LogitRow> wanted) {
  ForwardBatch batch;
  for (const StepPlan::Rows& rows : plan.rows) {
    const Sequence& sequence = *Find(rows.id);
    const int end = sequence.computed + rows.count;
    const int segment = static_cast<int>(batch.segments.size());
    batch.segments.push_back({.blocks = sequence.lease.blocks(), .tokens = end});
    for (int position = sequence.computed; position < end; ++position) {
      batch.AddRow(sequence.tokens[static_cast<std::size_t>(position)], position, segment);
    }
  }
  for (const LogitRow& row : wanted) {
    batch.logit_rows.push_back(row.row);
  }
  return batch;
}

void Engine::ReportLayer(const StepPlan& plan, LayerIndex layer) {
  for (const StepPlan::Rows& rows : plan.rows) {
    const Sequence& sequence = *Find(rows.id);
    if (sequence.request.kind != SequenceKind::kPrefillOnly) {
      continue;
    }
    // A block is final once its last slot is written; the prompt's last, part-filled block once the
    // prompt is done.
    const int end = sequence.computed + rows.count;
    const int first_block = sequence.computed / kBlockTokens;
    const int end_block = end == sequence.known() ? BlocksForTokens(end) : end / kBlockTokens;
    if (end_block > first_block) {
      sequence.request.hooks->OnLayerComputed(layer, first_block, end_block - first_block);
    }
  }
}

// Called before the step's tokens count as computed.
std::vector<Engine::LogitRow> Engine::LogitRows(const StepPlan& plan) {
  std::vector<LogitRow> wanted;
  int first_row = 0;
  for (const StepPlan::Rows& rows : plan.rows) {
    Sequence& sequence = *Find(rows.id);
    for (int i = 0; i < rows.count; ++i) {
      const int position = sequence.computed + i;
      if (position + 1 == sequence.known()) {
        wanted.push_back({first_row + i, &sequence, std::nullopt});
      } else if (sequence.WantsPromptLogprob(position)) {
        wanted.push_back(
            {first_row + i, &sequence, sequence.tokens[static_cast<std::size_t>(position + 1)]});
      }
    }
    first_row += rows.count;
  }
  return wanted;
}

void Engine::FinishStep(const StepPlan& plan,
                        std::span<const LogitRow> wanted,
                        TensorView<const float> logits) {
  for (const StepPlan::Rows& rows : plan.rows) {
    Sequence& sequence = *Find(rows.id);
    const int in_prompt = std::max(
        0, std::min(sequence.computed + rows.count, sequence.prompt_tokens()) - sequence.computed);
    prefilled_tokens_ += static_cast<std::uint64_t>(in_prompt);
    step_.prefilled_tokens += in_prompt;
    sequence.computed += rows.count;
    RegisterBlocks(sequence);
  }
  std::vector<SampleRow> rows;
  for (const LogitRow& row : wanted) {
    rows.push_back({.request = &row.sequence->request,
                    .history = row.sequence->tokens,
                    .forced = row.prompt_token});
  }
  std::vector<Sample> samples = SampleRows(backend_, logits, rows);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    TakeSample(*wanted[i].sequence, wanted[i].prompt_token.has_value(), std::move(samples[i]));
  }
}

void Engine::TakeSample(Sequence& sequence, bool of_prompt, Sample sample) {
  if (sequence.ended) {
    return;  // an earlier row of it failed
  }
  if (!sample.status.ok()) {
    LogEvent(LogLevel::kError, "sample.failed",
             {{"request", sequence.request.request_id}, {"status", sample.status}});
    End(sequence, std::move(sample.status));
  } else if (of_prompt) {
    sequence.prompt_logprobs.push_back(std::move(sample.token));
  } else {
    ++decoded_tokens_;
    ++step_.sampled_tokens;
    if (sequence.output_tokens() == 0 && !sequence.request.fork_of.has_value()) {
      step_.prompt_tokens += sequence.prompt_tokens();
    }
    AppendToken(sequence, sample.token);
  }
}

void Engine::Replace(Sequence& sequence, int valid_blocks) {
  sequence.lease.Truncate(std::min(valid_blocks, sequence.lease.size()));
  // At least one token is left to compute: the next one is sampled from it.
  sequence.computed = std::min(sequence.lease.size() * kBlockTokens, sequence.known() - 1);
  sequence.registered = std::min(sequence.registered, sequence.lease.size());
  sequence.phase = SequencePhase::kWaiting;
}

void Engine::AppendToken(Sequence& sequence, const SelectedToken& selected) {
  const TokenId token = selected.token;
  if (sequence.output_tokens() == 0 && sequence.admitted.has_value() && !sequence.importing) {
    sequence.end.prefill = options_.clock->Now() - *sequence.admitted;
  }
  if (sequence.wants_prompt_logprobs()) {
    sequence.request.sink->OnPromptLogprobs(std::move(sequence.prompt_logprobs));
  }
  sequence.tokens.push_back(token);
  sequence.request.sink->OnToken(selected);
  const std::vector<TokenId>& stops = sequence.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
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

void Engine::PublishLoad() {
  EngineLoad load{.total_blocks = pool_.total(),
                  .free_blocks = pool_.free(),
                  .cached_blocks = pool_.kept(),
                  .prefilled_tokens = prefilled_tokens_,
                  .decoded_tokens = decoded_tokens_,
                  .prefix_query_tokens = prefix_query_tokens_,
                  .prefix_hit_tokens = prefix_hit_tokens_};
  for (const auto& sequence : sequences_) {
    (sequence->phase == SequencePhase::kWaiting ? load.waiting : load.running) += 1;
  }
  absl::MutexLock lock(&load_mutex_);
  load_ = load;
}

}  // namespace baton
