#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "common/random_id.h"
#include "common/serial_executor.h"
#include "common/span_log.h"
#include "decode_worker/landing_watch.h"
#include "decode_worker/prefill_client.h"
#include "engine/engine.h"
#include "kvtransfer/transfer_service.h"
#include "worker/worker_core.h"

namespace baton {

struct HandoffTimes {
  // From the Prefill call to its `accepted`, which comes before any queueing on the other side.
  Duration accept = std::chrono::milliseconds(1500);
  // From the first token, when all of the prompt is computed, to the last block landed.
  LandingLimits landing;
  // Where the prefill side has computed too little of the prompt to tell how long that takes here,
  // it is taken for this long, and what its bytes take at this rate.
  Duration computing_unknown = std::chrono::seconds(1);
  double computing_unknown_bytes_per_second = 50e6;
};

// What the handoffs of a decode worker share. Borrowed; outlives all of them.
struct HandoffContext {
  WorkerCore& core;
  PrefillClient& prefill;
  SerialExecutor& executor;
  HandoffTimes times;
};

// What one request wants of its handoff.
struct HandoffPlan {
  std::string request_id;
  v1::SequenceSpec sequence;
  bool shares_prompt = false;                    // other sequences wait for its KV
  std::vector<v1::PrefillCandidate> candidates;  // in the order to try; at least one
  bool forced = false;  // when no candidate is left: fail instead of computing here
  // Unless forced: with fewer prompt tokens than this not in the prefix cache, compute here.
  int colocate_below_tokens = 0;
  TimePoint deadline;
  std::string traceparent;  // W3C; empty: not traced
};

// What is known about a request's path so far.
struct HandoffReport {
  bool split = false;
  bool prefill_failed = false;
  bool prefix_cached = false;  // not split: most of the prompt was here already
  std::string prefill_worker;
  std::string transport;
  Duration queue{};                      // on the prefill side
  Duration prefill{};                    // on the prefill side
  std::uint32_t cached_tokens = 0;       // of the prompt, on the prefill side
  Duration transfer{};                   // first byte to last
  std::optional<TimePoint> first_token;  // when it arrived here
};

// The decode side of one disaggregated request, from leased blocks to adopted ones: asks prefill
// candidates in turn, fetches the prompt's blocks, gives the engine's sequence its first token and
// its KV.
//
// A candidate that fails is followed by the next; whole blocks that landed are kept. With none left
// the engine computes the rest, or the sequence ends with UNAVAILABLE if the client forced the
// split. Blocks that a transport may still write to are never computed into: they are replaced
// first.
//
// All state belongs to the executor's thread; every other thread only posts to it. Whatever is
// still to come (an event of a call or of a transfer, a posted task) keeps the object alive.
class IncomingHandoff final : public HandoffHooks,
                              public std::enable_shared_from_this<IncomingHandoff> {
 public:
  // Both on the executor's thread.
  struct Listener {
    std::function<void(const HandoffReport&)> on_change;
    // The first token, before the engine hears of it: that one may be in the middle of a step.
    std::function<void(const SelectedToken&)> on_first_token;
  };

  IncomingHandoff(const HandoffContext& context, HandoffPlan plan, Listener listener);

  // The engine's sequence that this handoff feeds. Thread-safe; once, before or after the engine
  // admits it.
  void SetSequence(SequenceId id);
  // The sequence has ended, for whatever reason: stop the other side and let go. Thread-safe.
  void Abandon();

  // HandoffHooks, on the engine thread.
  void OnAdmitted(PinnedBlocks pin, int valid_blocks) override;
  void OnLayerComputed(LayerIndex layer, int first_block, int block_count) override;

 private:
  class Attempt;

  template <typename Task>
  void Post(Task task);
  void TryWhenReady();
  bool IsMostlyHere() const;
  void StartAttempt();
  void HandleAccepted(const v1::PrefillEvent::Accepted& accepted);
  void HandleFirstToken(const v1::PrefillEvent::FirstToken& first);
  absl::Status Check(const v1::PrefillEvent::FirstToken& first) const;
  void HandleCallEnd(const absl::Status& status);
  void HandleLanded(const FetchStats& stats);
  void HandleFetchFailed(const absl::Status& why, const std::vector<int>& whole_blocks);
  void FailAttempt(const absl::Status& why);
  template <typename Condition>
  void FailUnless(Duration after, Condition met, const char* why);
  void AdoptIfComplete();
  void ContinueAfterFailure(const absl::Status& why);
  void ComputeHere();
  // `why` tells what went wrong, or is OK.
  void EndAttempt(DecodeHandoffState end, const absl::Status& why);
  void RecordTransfer(const FetchStats& stats);
  void WatchLanding();
  std::optional<Duration> ComputingTime() const;
  std::size_t FetchBytes() const;
  bool NeedsKv() const { return plan_.sequence.max_tokens() > 1 || plan_.shares_prompt; }

  const HandoffContext context_;
  const HandoffPlan plan_;
  const Listener listener_;
  const int prompt_blocks_;

  // Executor's thread only.
  std::optional<SequenceId> sequence_;
  std::optional<PinnedBlocks> pin_;  // until a fetch takes it
  int valid_blocks_ = 0;             // leading blocks of the prompt that hold their final values
  std::size_t next_candidate_ = 0;
  OpenSpan span_;                     // of the attempt
  std::shared_ptr<Attempt> attempt_;  // shared with the call and the transfer that report to it
  std::optional<std::uint32_t> first_token_;
  HandoffReport report_;
  bool over_ = false;  // adopted, computed here, failed or abandoned
};

}  // namespace baton
