#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.pb.h"
#include "common/span_log.h"
#include "decode_worker/incoming_handoff.h"
#include "engine/sequence.h"
#include "frontend/generator.h"
#include "frontend/text_stream.h"
#include "worker/worker_core.h"

namespace baton {

// One request as a decode worker runs it. See Generator for `choices` and `stop`.
struct DecodeJob {
  std::string request_id;
  v1::SequenceSpec sequence;
  std::uint32_t choices = 1;                  // sequences to make of the prompt, at most 16
  std::vector<std::string> stop;              // end a choice whose text has one of them
  std::vector<v1::PrefillCandidate> prefill;  // empty: colocated
  bool forced = false;
  // Unless forced: with fewer prompt tokens than this not in the prefix cache, not split.
  int colocate_below_tokens = 0;
  TimePoint deadline;
  v1::RouteReason reason = v1::ROUTE_REASON_UNSPECIFIED;  // handed back in results
  std::string traceparent;                                // W3C; empty: not traced
};

// One request between its submission and the end of its last sequence: the engine's sinks on one
// side, the observer on the other.
//
// Choice 0 is the one that computes or imports the prompt; the others are forks of it, which wait
// for its KV and share it. A choice whose text meets a stop string is ended here.
//
// Thread-safe. The engine's sequences keep it alive.
class DecodeSession final : public Generation, public std::enable_shared_from_this<DecodeSession> {
 public:
  // Who it is made by.
  struct Owner {
    WorkerCore& core;  // outlives the session
    std::string address;
    std::function<std::shared_ptr<IncomingHandoff>(HandoffPlan, IncomingHandoff::Listener)>
        make_handoff;
    std::function<void()> on_gone;  // the last sequence has ended
  };

  DecodeSession(Owner owner, v1::RouteReason reason, std::shared_ptr<GenerationObserver> observer);

  // Call once. The observer may hear the end before it returns.
  void Begin(DecodeJob job);

  void Cancel() override;
  void CancelWith(const absl::Status& why);
  // Unless something has come of it already: ends it for its observer now, whenever the engine gets
  // to it.
  void GiveUpUnlessBegun(const absl::Status& why);

 private:
  class ChoiceSink;

  struct Choice {
    std::optional<SequenceId> sequence;  // from its submission on
    std::optional<absl::Status> cancel;  // its sequence is to end, or to end once it is known
    std::unique_ptr<TextStream> text;    // null without stop strings
    bool begun = false;                  // the engine has given a token
    std::optional<TokenId> told;         // the first one, told before the engine gives it

    bool stopped() const { return text != nullptr && text->stopped(); }
  };

  void MakeChoices(const DecodeJob& job, std::size_t count);
  absl::StatusOr<SequenceId> SubmitLeader(SequenceRequest request, DecodeJob job);
  absl::StatusOr<SequenceId> SubmitFork(SequenceRequest request,
                                        std::size_t choice,
                                        SequenceId leader);
  absl::StatusOr<SequenceId> Submit(std::size_t choice, SequenceRequest request);
  void EndUnsubmitted(std::size_t first, const absl::Status& why);
  std::string TraceParent();
  void CancelChoice(std::size_t choice, const absl::Status& why);

  // Engine thread.
  void TakePromptLogprobs(const std::vector<SelectedToken>& tokens);
  void TakeToken(std::size_t index, const SelectedToken& token);
  void EndChoice(std::size_t index, const SequenceEnd& end);
  void Emit(Choice& choice, std::uint32_t index, const SelectedToken& token)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillTimes(const SequenceEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndSpan(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Executor's thread.
  void Report(const HandoffReport& report);
  void TellFirstToken(const SelectedToken& token);

  const Owner owner_;
  std::shared_ptr<IncomingHandoff>
      handoff_;  // shared with its own pending events; null when colocated

  absl::Mutex mutex_;  // orders the observer's calls, which come from the engine's and the
                       // executor's thread
  std::shared_ptr<GenerationObserver> observer_ ABSL_GUARDED_BY(mutex_);  // null after the end
  std::vector<Choice> choices_ ABSL_GUARDED_BY(mutex_);
  std::size_t open_ ABSL_GUARDED_BY(mutex_) = 0;  // choices that have not ended
  std::optional<absl::Status> cancelled_
      ABSL_GUARDED_BY(mutex_);  // all of them, maybe before they have begun
  bool wants_logprobs_ ABSL_GUARDED_BY(mutex_) = false;
  bool wants_prompt_logprobs_ ABSL_GUARDED_BY(mutex_) = false;
  GenerationResult result_ ABSL_GUARDED_BY(mutex_);
  HandoffReport report_ ABSL_GUARDED_BY(mutex_);
  OpenSpan span_ ABSL_GUARDED_BY(mutex_);
  std::int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // of all choices
};

}  // namespace baton
