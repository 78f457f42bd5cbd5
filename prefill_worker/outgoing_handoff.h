#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/random_id.h"
#include "engine/engine.h"
#include "kvtransfer/transfer_service.h"
#include "worker/worker_core.h"

namespace baton {

// What came of a prompt.
struct FirstToken {
  SelectedToken token;
  std::vector<SelectedToken> prompt_logprobs;  // when asked for
  Duration queue{};
  Duration prefill{};
  int cached_tokens = 0;  // of the prompt, found in the prefix cache
};

// What a Prefill call hears. Calls come from any thread, one at a time.
class PrefillObserver {
 public:
  virtual ~PrefillObserver() = default;
  virtual void OnFirstToken(const FirstToken& first) = 0;
  // Exactly once, last: the sequence has ended and its blocks are no longer offered. OK when the
  // decode side has acknowledged them.
  virtual void OnEnd(const absl::Status& status) = 0;
};

// Who wants the blocks, and under which name.
struct HandoffTicket {
  std::string request_id;
  HandoffId id;
  std::uint64_t epoch = 0;
  InstanceId decode_instance;
  bool first_token_only = false;  // no blocks are offered: nobody would fetch them
};

// The prefill side of one handoff: runs the prompt, offers its blocks from the moment they are
// leased, marks layers ready as they are computed, and keeps the blocks pinned until the decode
// side has them, gives up, or falls silent.
//
// Thread-safe. Kept alive by the engine until the sequence ends and by itself while the offer is
// open.
class OutgoingHandoff final : public TokenSink,
                              public HandoffHooks,
                              public OfferSink,
                              public std::enable_shared_from_this<OutgoingHandoff> {
 public:
  OutgoingHandoff(WorkerCore& core,
                  HandoffTicket ticket,
                  std::shared_ptr<PrefillObserver> observer);

  // Submits the sequence; OnEnd tells when it is refused. `ended` is called after the observer's
  // OnEnd.
  void Begin(SequenceRequest request, std::function<void()> ended);
  // The caller has gone or wants no more.
  void Cancel(const absl::Status& why);

  // Engine thread.
  void OnPromptLogprobs(std::vector<SelectedToken> tokens) override;
  void OnToken(const SelectedToken& token) override;
  void OnEnd(const SequenceEnd& end) override;
  void OnAdmitted(PinnedBlocks pin, int valid_blocks) override;
  void OnLayerComputed(LayerIndex layer, int first_block, int block_count) override;
  // Transfer thread.
  void OnEnd(HandoffId id,
             PrefillHandoffState end,
             const absl::Status& why,
             const OfferStats& stats) override;

 private:
  void EndWhenComplete();

  WorkerCore& core_;
  const HandoffTicket ticket_;
  const std::shared_ptr<PrefillObserver> observer_;  // shared with the call it writes to

  absl::Mutex mutex_;
  std::function<void()> ended_ ABSL_GUARDED_BY(mutex_);
  std::optional<SequenceId> sequence_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> cancelled_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<OutgoingHandoff> self_ ABSL_GUARDED_BY(mutex_);  // while the offer is open
  std::vector<SelectedToken> prompt_logprobs_ ABSL_GUARDED_BY(mutex_);
  std::optional<SelectedToken> first_token_ ABSL_GUARDED_BY(mutex_);
  bool sequence_open_ ABSL_GUARDED_BY(mutex_) = true;
  bool offer_open_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the first that went wrong
};

}  // namespace baton
