#include "prefill_worker/outgoing_handoff.h"

#include <utility>

#include "common/failpoint.h"
#include "common/log.h"

namespace baton {

OutgoingHandoff::OutgoingHandoff(WorkerCore& core,
                                 HandoffTicket ticket,
                                 std::shared_ptr<PrefillObserver> observer)
    : core_(core), ticket_(std::move(ticket)), observer_(std::move(observer)) {}

void OutgoingHandoff::Begin(SequenceRequest request, std::function<void()> ended) {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = std::move(ended);
  }
  request.kind = SequenceKind::kPrefillOnly;
  request.request_id = ticket_.request_id;
  request.sink = shared_from_this();
  request.hooks = shared_from_this();
  const absl::StatusOr<SequenceId> id = core_.engine().Submit(std::move(request));
  if (!id.ok()) {
    OnEnd(SequenceEnd{.status = id.status()});
    return;
  }
  absl::MutexLock lock(&mutex_);
  sequence_ = *id;
  // What happened before the id was known.
  if (cancelled_.has_value() || !status_.ok()) {
    core_.engine().Cancel(*id, cancelled_.value_or(status_));
  }
}

void OutgoingHandoff::Cancel(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  cancelled_ = why;
  if (sequence_open_ && sequence_.has_value()) {
    core_.engine().Cancel(*sequence_, why);
  }
  if (offer_open_) {
    core_.transfer().Withdraw(ticket_.id, why);
  }
}

void OutgoingHandoff::OnAdmitted(PinnedBlocks pin, int valid_blocks) {
  if (ticket_.first_token_only) {
    return;
  }
  OfferRequest offer{.id = ticket_.id,
                     .epoch = ticket_.epoch,
                     .peer = ticket_.decode_instance,
                     .blocks = {pin.blocks().begin(), pin.blocks().end()},
                     .sink = this};
  offer.pin = std::make_unique<BlockPin>(std::move(pin));
  std::optional<SequenceId> refused;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Status status =
        cancelled_.has_value() ? *cancelled_ : core_.transfer().Offer(std::move(offer));
    if (status.ok()) {
      offer_open_ = true;
      self_ = shared_from_this();
    } else {
      status_.Update(status);
      refused = sequence_;
    }
  }
  if (refused.has_value()) {
    core_.engine().Cancel(*refused, absl::UnavailableError("the blocks could not be offered"));
  }
  if (valid_blocks > 0) {
    core_.transfer().MarkReady(ticket_.id, {.first_block = 0,
                                            .block_count = valid_blocks,
                                            .first_layer = 0,
                                            .layer_count = core_.engine().identity().kv.layers});
  }
}

void OutgoingHandoff::OnLayerComputed(LayerIndex layer, int first_block, int block_count) {
  HitFailpoint("prefill.kComputing").IgnoreError();
  if (ticket_.first_token_only) {
    return;
  }
  core_.transfer().MarkReady(ticket_.id, {.first_block = first_block,
                                          .block_count = block_count,
                                          .first_layer = static_cast<int>(layer.value()),
                                          .layer_count = 1});
}

void OutgoingHandoff::OnPromptLogprobs(std::vector<SelectedToken> tokens) {
  absl::MutexLock lock(&mutex_);
  prompt_logprobs_ = std::move(tokens);
}

void OutgoingHandoff::OnToken(const SelectedToken& token) {
  if (!ticket_.first_token_only) {
    core_.transfer().FinishComputing(ticket_.id);
  }
  absl::MutexLock lock(&mutex_);
  first_token_ = token;
}

void OutgoingHandoff::OnEnd(const SequenceEnd& end) {
  std::optional<FirstToken> first;
  {
    absl::MutexLock lock(&mutex_);
    if (first_token_.has_value()) {
      first = {.token = *std::move(first_token_),
               .prompt_logprobs = std::move(prompt_logprobs_),
               .queue = end.queue,
               .prefill = end.prefill,
               .cached_tokens = end.cached_tokens};
    }
    if (!end.status.ok()) {
      status_.Update(end.status);
      if (offer_open_) {
        core_.transfer().Withdraw(ticket_.id, end.status);
      }
    }
  }
  if (end.status.ok() && first.has_value()) {
    observer_->OnFirstToken(*first);
  }
  {
    absl::MutexLock lock(&mutex_);
    sequence_open_ = false;
  }
  EndWhenComplete();
}

void OutgoingHandoff::OnEnd(HandoffId,
                            PrefillHandoffState end,
                            const absl::Status& why,
                            const OfferStats& stats) {
  core_.worker_metrics().OnHandoffEnd(end);
  LogEvent(LogLevel::kDebug, "handoff.ended",
           {{"request", ticket_.request_id},
            {"handoff", ticket_.id.ToString()},
            {"state", ToString(end)},
            {"bytes", stats.bytes_sent},
            {"status", why}});
  std::shared_ptr<OutgoingHandoff> self;
  {
    absl::MutexLock lock(&mutex_);
    offer_open_ = false;
    self = std::move(self_);
    status_.Update(why);
    if (sequence_open_ && sequence_.has_value()) {
      // Nobody waits for the rest of the prompt.
      core_.engine().Cancel(*sequence_,
                            why.ok() ? absl::CancelledError("the handoff has ended") : why);
    }
  }
  EndWhenComplete();
}

void OutgoingHandoff::EndWhenComplete() {
  absl::Status status;
  std::function<void()> ended;
  {
    absl::MutexLock lock(&mutex_);
    if (sequence_open_ || offer_open_ || told_) {
      return;
    }
    told_ = true;
    status = status_;
    ended = std::move(ended_);
  }
  observer_->OnEnd(status);
  ended();
}

}  // namespace baton
