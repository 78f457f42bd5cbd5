// Which sequence gets which blocks: what the scheduler is told, what its plan does to leases, and
// what the prefix cache gives and takes.
#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "engine/engine.h"

namespace baton {
namespace {

// Waiting sequences that one step looks up in the prefix cache, and of these, offers to the
// scheduler: few are admitted in a step, and a herd of equal prompts waits for one of them.
constexpr int kLookups = 64;
constexpr int kCandidates = 8;

}  // namespace

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
    if (leader != nullptr && leader->ended) {
      leader = nullptr;  // it holds no blocks any more, though its prompt may be in the cache
    } else if (leader != nullptr && !leader->holds_prompt()) {
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
  view.shared_blocks = static_cast<int>(std::ranges::count_if(
      sequence.lease.blocks(), [this](BlockId block) { return pool_.IsShared(block); }));
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

}  // namespace baton
