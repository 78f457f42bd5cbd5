#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/live_sequence.h"

namespace baton {

inline constexpr int kPoolBlocks = 12;
inline constexpr SchedulerLimits kLimits{
    .max_batch_tokens = 24, .max_sequences = 6, .max_prefills = 3, .max_logprob_rows = 8};

// What stands in a slot of the pool in place of keys and values: it names a token and all before
// it.
inline std::uint64_t SlotValue(std::uint64_t previous, TokenId token) {
  std::uint64_t value = (previous + token.value() + 1) * 0x9e3779b97f4a7c15u;
  value ^= value >> 29;
  return value | 2;
}
inline constexpr std::uint64_t kGarbage = 1;  // no token's value

inline std::vector<std::uint64_t> SlotValues(const std::vector<TokenId>& tokens) {
  std::vector<std::uint64_t> values;
  for (const TokenId token : tokens) {
    values.push_back(SlotValue(values.empty() ? 0 : values.back(), token));
  }
  return values;
}

// The token after the one whose slot holds `value`: few different ones, so that later prompts hit
// outputs.
inline TokenId NextToken(std::uint64_t value) {
  return TokenId(static_cast<std::uint32_t>((value >> 7) % 2));
}

// A pin that a transport holds on the blocks of a prompt, maybe for longer than the sequence lives.
struct Transfer {
  SequenceId sequence;
  std::vector<TokenId> prompt;
  BlockLease pin;
  int first_block = 0;    // the transport writes to this one and those behind it
  bool incoming = false;  // else it only reads
  bool finished = false;  // all blocks hold the prompt's values
};

// What happened, so that a run in which something never happens is noticed.
struct Counts {
  int ended = 0;
  int preempted = 0;
  int shared = 0;  // blocks
  int copied = 0;  // likewise
  int forked = 0;
  int adopted = 0;
  int resumed = 0;
  int renewed = 0;
  int sent = 0;
};

// Carries out the scheduler's plans on pool and cache as an engine does, in a memory whose slots
// say what they are of: a sequence that would read wrong values is found at once.
class DevicelessEngine {
 public:
  std::vector<std::unique_ptr<LiveSequence>>& sequences() { return sequences_; }
  std::vector<Transfer>& transfers() { return transfers_; }
  const BlockPool& pool() const { return pool_; }
  const Counts& counts() const { return counts_; }

  void Submit(SequenceRequest request) {
    auto sequence = std::make_unique<LiveSequence>();
    sequence->id = SequenceId(++last_id_);
    sequence->importing = request.kind == SequenceKind::kImport;
    sequence->tokens = request.prompt;
    sequence->hashes.push_back(RootHash({}));
    sequence->request = std::move(request);
    sequences_.push_back(std::move(sequence));
  }

  void Remove(const LiveSequence& sequence) {
    std::erase_if(sequences_, [&sequence](const auto& each) { return each.get() == &sequence; });
  }

  void Step() {
    const std::vector<SequenceView> views = MakeViews();
    const StepPlan plan = PlanStep(kLimits, pool_.free(), views);
    ASSERT_NO_FATAL_FAILURE(CheckPlan(views, plan));
    ASSERT_NO_FATAL_FAILURE(Apply(plan));
    ASSERT_NO_FATAL_FAILURE(Compute(plan));
  }

  // Import: everything has landed, and the first token came with it.
  void Adopt(LiveSequence& sequence) {
    Transfer& transfer = *TransferOf(sequence);
    Land(transfer, transfer.pin.size());
    transfer.finished = true;
    ++counts_.adopted;
    sequence.importing = false;
    sequence.phase = SequencePhase::kRunning;
    sequence.computed = sequence.prompt_tokens();
    Append(sequence, NextToken(SlotValues(sequence.request.prompt).back()));
  }

  // Import: the source is gone when `landed` more blocks have their values. Another one is tried,
  // or the rest is computed here.
  void LoseSource(LiveSequence& sequence, int landed, bool renew) {
    Transfer& transfer = *TransferOf(sequence);
    const int valid = std::min(transfer.first_block + landed, transfer.pin.size());
    Land(transfer, valid);
    transfer.first_block = valid;
    ++(renew ? counts_.renewed : counts_.resumed);
    sequence.importing = renew;
    sequence.lease.Truncate(valid);
    sequence.computed = std::min(valid * kBlockTokens, sequence.known() - 1);
    sequence.registered = std::min(sequence.registered, valid);
    sequence.phase = SequencePhase::kWaiting;
  }

  // A transport lets go, unless its import is under way. Where it was given up on it may have
  // written until now; what it read must have stayed as it was.
  void DropTransfer(std::size_t index) {
    Transfer& transfer = transfers_.at(index);
    const LiveSequence* sequence = Find(transfer.sequence);
    if (sequence != nullptr && sequence->phase == SequencePhase::kImporting &&
        TransferOf(*sequence) == &transfer) {
      return;
    }
    if (transfer.finished) {
      EXPECT_TRUE(Holds(transfer.pin, SlotValues(transfer.prompt)));
    } else if (transfer.incoming) {
      for (const BlockId block :
           transfer.pin.blocks().subspan(static_cast<std::size_t>(transfer.first_block))) {
        memory_.at(block.value()).fill(kGarbage);
      }
    }
    transfers_.erase(transfers_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void CheckInvariants() const {
    ASSERT_TRUE(pool_.CheckInvariants().ok()) << pool_.CheckInvariants();
    ASSERT_TRUE(cache_.CheckInvariants().ok()) << cache_.CheckInvariants();
    std::map<BlockId, int> pins;
    const auto count = [&pins](const BlockLease& lease) {
      std::ranges::for_each(lease.blocks(), [&pins](BlockId block) { ++pins[block]; });
    };
    std::ranges::for_each(sequences_, count,
                          [](const auto& each) -> const BlockLease& { return each->lease; });
    std::ranges::for_each(transfers_, count, &Transfer::pin);
    ASSERT_EQ(pool_.free(), kPoolBlocks - static_cast<int>(pins.size()));
    for (std::uint32_t i = 0; i < kPoolBlocks; ++i) {
      ASSERT_EQ(pool_.IsPinned(BlockId(i)), pins.contains(BlockId(i))) << "block " << i;
    }
  }

 private:
  using Block = std::array<std::uint64_t, kBlockTokens>;

  LiveSequence* Find(SequenceId id) {
    const auto it = std::ranges::find(sequences_, id, [](const auto& each) { return each->id; });
    return it == sequences_.end() ? nullptr : it->get();
  }
  // The latest of several tries; null when its transport has let go.
  Transfer* TransferOf(const LiveSequence& sequence) {
    const auto it = std::find_if(transfers_.rbegin(), transfers_.rend(), [&](const Transfer& each) {
      return each.sequence == sequence.id;
    });
    return it == transfers_.rend() ? nullptr : &*it;
  }
  std::uint64_t& Slot(const BlockLease& lease, std::size_t position) {
    const BlockId block = lease.blocks()[position / kBlockTokens];
    return memory_.at(block.value()).at(position % kBlockTokens);
  }
  bool Holds(const BlockLease& lease, std::span<const std::uint64_t> values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (Slot(lease, i) != values[i]) {
        return false;
      }
    }
    return true;
  }
  // The transport writes blocks [first_block, end) of the prompt.
  void Land(const Transfer& transfer, int end) {
    const std::vector<std::uint64_t> values = SlotValues(transfer.prompt);
    const auto begin = static_cast<std::size_t>(transfer.first_block) * kBlockTokens;
    for (std::size_t i = begin;
         i < std::min(values.size(), static_cast<std::size_t>(end) * kBlockTokens); ++i) {
      Slot(transfer.pin, i) = values[i];
    }
  }

  std::vector<SequenceView> MakeViews() {
    std::vector<SequenceView> views;
    for (const auto& sequence : sequences_) {
      SequenceView view{.id = sequence->id,
                        .phase = sequence->phase,
                        .tokens = sequence->known(),
                        .computed = sequence->computed,
                        .blocks = sequence->lease.size(),
                        .preemptible = sequence->preemptible(),
                        .prompt_logprobs = sequence->wants_prompt_logprobs(),
                        .imports = sequence->importing};
      view.shared_blocks = static_cast<int>(std::ranges::count_if(
          sequence->lease.blocks(), [this](BlockId block) { return pool_.IsShared(block); }));
      if (sequence->may_share()) {
        const LiveSequence* leader = Find(sequence->request.fork_of.value_or(SequenceId(0)));
        if (leader != nullptr && sequence->output_tokens() == 0 && !leader->holds_prompt()) {
          continue;
        }
        const PrefixHit hit = FindPrefix(*sequence, &cache_, leader);
        view.computed = hit.tokens;
        view.cached_blocks = static_cast<int>(hit.shared.size());
        std::vector<BlockId> used = hit.shared;
        if (hit.copied.has_value()) {
          used.push_back(*hit.copied);
        }
        view.idle_cached_blocks = static_cast<int>(
            std::ranges::count_if(used, [this](BlockId block) { return !pool_.IsPinned(block); }));
        sequence->hit = hit;
      }
      views.push_back(view);
    }
    return views;
  }

  // What must hold of any plan.
  void CheckPlan(const std::vector<SequenceView>& views, const StepPlan& plan) {
    std::map<SequenceId, SequenceView> state;
    for (const SequenceView& view : views) {
      state[view.id] = view;
    }
    for (const SequenceId id : plan.preempt) {
      ASSERT_GT(state.at(id).blocks, 0);
      ASSERT_NE(id, views.front().id) << "the oldest always progresses";
      ASSERT_TRUE(state.at(id).preemptible || state.at(id).phase == SequencePhase::kWaiting);
      state.at(id).phase = SequencePhase::kWaiting;
    }
    for (const StepPlan::Blocks& admit : plan.admit) {
      const auto waits = [&state](const SequenceView& view) {
        return state.at(view.id).phase == SequencePhase::kWaiting;
      };
      ASSERT_EQ(std::ranges::find_if(views, waits)->id, admit.id) << "first come, first served";
      SequenceView& view = state.at(admit.id);
      view.phase = view.imports ? SequencePhase::kImporting : SequencePhase::kRunning;
    }
    ASSERT_LE(
        std::ranges::count_if(
            state, [](const auto& each) { return each.second.phase != SequencePhase::kWaiting; }),
        kLimits.max_sequences);
    ASSERT_NO_FATAL_FAILURE(CheckRows(state, plan));
    for (const SequenceView& view : views) {
      const bool streams = view.phase == SequencePhase::kRunning &&
                           state.at(view.id).phase == SequencePhase::kRunning &&
                           view.tokens - view.computed == 1;
      if (streams && std::ranges::count(plan.rows, view.id, &StepPlan::Rows::id) == 0) {
        ASSERT_LT(view.blocks, BlocksForTokens(view.tokens)) << "sits out without need";
        ASSERT_TRUE(plan.admit.empty()) << "sits out while others are let in";
      }
    }
  }

  static std::string Describe(const std::map<SequenceId, SequenceView>& state) {
    constexpr std::array kPhases = {"waiting", "importing", "running"};
    std::string text;
    for (const auto& [id, view] : state) {
      absl::StrAppend(&text, "\n  ", id.value(), " ",
                      kPhases.at(static_cast<std::size_t>(view.phase)),
                      view.imports ? " import" : "", ": ", view.tokens, " tokens, ", view.computed,
                      " computed, ", view.blocks, " blocks, of these shared ", view.shared_blocks,
                      "; cached ", view.cached_blocks, ", idle ", view.idle_cached_blocks);
    }
    return text;
  }

  void CheckRows(const std::map<SequenceId, SequenceView>& state, const StepPlan& plan) {
    int rows = 0;
    int logprob_rows = 0;
    absl::flat_hash_set<SequenceId> computed;
    for (const StepPlan::Rows& each : plan.rows) {
      const SequenceView& view = state.at(each.id);
      ASSERT_TRUE(computed.insert(each.id).second);
      ASSERT_EQ(view.phase, SequencePhase::kRunning);
      ASSERT_GT(each.count, 0);
      ASSERT_LE(each.count, view.tokens - view.computed);
      rows += each.count;
      const bool decodes = view.tokens - view.computed == 1;
      logprob_rows += view.prompt_logprobs && !decodes ? each.count : 0;
    }
    ASSERT_LE(rows, kLimits.max_batch_tokens);
    ASSERT_LE(logprob_rows, kLimits.max_logprob_rows);
    if (plan.rows.empty() && plan.admit.empty() && plan.preempt.empty()) {
      const bool blocked = !transfers_.empty() || std::ranges::all_of(state, [](const auto& each) {
        return each.second.phase == SequencePhase::kImporting;
      });
      ASSERT_TRUE(blocked) << "no progress with " << pool_.free()
                           << " blocks free:" << Describe(state);
    }
  }

  void Apply(const StepPlan& plan) {
    for (const SequenceId id : plan.preempt) {
      LiveSequence& sequence = *Find(id);
      sequence.lease.Release();
      sequence.computed = 0;
      sequence.registered = 0;
      sequence.phase = SequencePhase::kWaiting;
      ++counts_.preempted;
    }
    std::vector<BlockLease> hits;
    for (const StepPlan::Blocks& admit : plan.admit) {
      const LiveSequence& sequence = *Find(admit.id);
      std::vector<BlockId> blocks;
      if (sequence.may_share()) {
        blocks = sequence.hit.shared;
        if (sequence.hit.copied.has_value()) {
          blocks.push_back(*sequence.hit.copied);
        }
      }
      hits.push_back(pool_.Pin(blocks));
    }
    for (const StepPlan::Blocks& grow : plan.grow) {
      std::optional<BlockLease> more = pool_.Lease(grow.count);
      ASSERT_TRUE(more.has_value());
      Find(grow.id)->lease.Append(*std::move(more));
    }
    for (std::size_t i = 0; i < plan.admit.size(); ++i) {
      std::optional<BlockLease> fresh = pool_.Lease(plan.admit[i].count);
      ASSERT_TRUE(fresh.has_value());
      Admit(*Find(plan.admit[i].id), std::move(hits[i]), *std::move(fresh));
    }
  }

  void Admit(LiveSequence& sequence, BlockLease hit, BlockLease fresh) {
    if (sequence.may_share()) {
      sequence.computed = sequence.hit.tokens;
      sequence.registered = static_cast<int>(sequence.hit.shared.size());
      counts_.shared += sequence.registered;
      if (sequence.hit.copied.has_value()) {
        memory_.at(fresh.blocks()[0].value()) = memory_.at(sequence.hit.copied->value());
        ++counts_.copied;
        counts_.forked += sequence.request.fork_of.has_value() ? 1 : 0;
      }
      hit.Truncate(sequence.registered);
      sequence.lease = std::move(hit);
    }
    const int valid_blocks = sequence.lease.size();
    sequence.lease.Append(std::move(fresh));
    sequence.phase = sequence.importing ? SequencePhase::kImporting : SequencePhase::kRunning;
    if (sequence.importing || sequence.request.kind == SequenceKind::kPrefillOnly) {
      BlockLease pin = sequence.lease.Share();
      pin.Truncate(BlocksForTokens(sequence.prompt_tokens()));
      transfers_.push_back({.sequence = sequence.id,
                            .prompt = sequence.request.prompt,
                            .pin = std::move(pin),
                            .first_block = valid_blocks,
                            .incoming = sequence.importing});
    }
  }

  // Each row reads all tokens before it and writes its own slot.
  void Compute(const StepPlan& plan) {
    for (const StepPlan::Rows& rows : plan.rows) {
      LiveSequence& sequence = *Find(rows.id);
      const std::vector<std::uint64_t> values = SlotValues(sequence.tokens);
      const auto computed = static_cast<std::size_t>(sequence.computed);
      ASSERT_TRUE(Holds(sequence.lease, std::span(values).first(computed)))
          << "sequence " << rows.id.value() << " reads what is not its own";
      for (std::size_t i = computed; i < computed + static_cast<std::size_t>(rows.count); ++i) {
        Slot(sequence.lease, i) = values[i];
      }
      sequence.computed += rows.count;
    }
    for (const StepPlan::Rows& rows : plan.rows) {
      LiveSequence& sequence = *Find(rows.id);
      Register(sequence);
      if (sequence.computed == sequence.known()) {
        const auto last = static_cast<std::size_t>(sequence.computed) - 1;
        Append(sequence, NextToken(Slot(sequence.lease, last)));
      }
    }
  }

  void Register(LiveSequence& sequence) {
    const std::span<const PrefixHash> hashes = sequence.BlockHashes();
    for (; sequence.registered < sequence.computed / kBlockTokens; ++sequence.registered) {
      cache_.Register(sequence.lease, sequence.registered, hashes, sequence.tokens);
    }
  }

  void Append(LiveSequence& sequence, TokenId token) {
    Register(sequence);
    sequence.tokens.push_back(token);
    if (sequence.request.kind == SequenceKind::kPrefillOnly) {
      if (Transfer* transfer = TransferOf(sequence); transfer != nullptr) {
        transfer->finished = true;
        ++counts_.sent;
      }
    } else if (sequence.output_tokens() < sequence.request.max_tokens) {
      return;
    }
    ++counts_.ended;
    Remove(sequence);
  }

  BlockPool pool_{kPoolBlocks};
  PrefixCache cache_{pool_};
  std::array<Block, kPoolBlocks> memory_{};
  std::vector<std::unique_ptr<LiveSequence>> sequences_;  // oldest first
  std::vector<Transfer> transfers_;
  std::uint64_t last_id_ = 0;
  Counts counts_;
};

}  // namespace baton
