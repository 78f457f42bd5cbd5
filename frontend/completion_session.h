#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/completions.pb.h"
#include "common/clock.h"
#include "common/span_log.h"
#include "frontend/calling_client.h"
#include "frontend/choice_stream.h"
#include "frontend/generator.h"
#include "frontend/request_validation.h"
#include "frontend/running_requests.h"
#include "frontend/timer_thread.h"

namespace baton {

// The client's call, as a session sees it. OnChunk and OnEnd come one at a time, OnEnd last and
// once.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  // False when the client has left too much unread; nothing but OnEnd follows then. The last chunk,
  // which carries usage, is always taken.
  virtual bool OnChunk(v1::CompleteChunk chunk) = 0;
  // `cut`: the end does not wait for chunks that are not on their way yet.
  virtual void OnEnd(const absl::Status& status, bool cut) = 0;

  // After OnEnd: keeps the call alive for CutHeld, unless its last byte is on its way already
  // (false). Any thread.
  virtual bool Hold() = 0;
  // Ends the held call with `status` without waiting for a client that does not read, and lets go
  // of it.
  virtual void CutHeld(const absl::Status& status) = 0;
};

// One request between its admission and its end: turns the tokens of its choices into chunks of
// text, echoes the prompt, watches for stop strings, keeps the times, and ends the generation when
// the client, the deadline or the server wants so.
//
// A choice's last chunk comes with its end; that of the last choice carries usage and time line. Of
// the reasons to end early the first wins; once all text has met its stop string the request ends
// with OK whatever comes after. Shared by the client's call and the generation, because neither
// knows who lets go first.
//
// Stop is thread-safe; OnProgress to OnError come one at a time (see GenerationObserver); Start and
// Detach belong to the call.
class CompletionSession final : public GenerationObserver,
                                public std::enable_shared_from_this<CompletionSession> {
 public:
  struct Options {
    std::string model_name;
    TimePoint arrival;
    Duration tokenize{0};
    TimePoint deadline;
    Caller caller;
    SpanSink* spans = nullptr;  // null: the request leaves no span. Outlives the generation
    std::string_view span_name;
  };

  // `sink` is used until Detach, `tokenizer` until the end of the generation, `timer` until Detach.
  CompletionSession(ValidatedRequest request,
                    Options options,
                    const Tokenizer& tokenizer,
                    CompletionSink& sink,
                    TimerThread& timer);
  ~CompletionSession() override;

  // Enters `running`, which it leaves when destroyed; its refusals are returned.
  absl::Status Enter(std::shared_ptr<RunningRequests> running);
  // Begins; from here on the sink hears from this session.
  void Start(Generator& generator);
  // Ends the request with `why`, which is not OK.
  void Stop(const absl::Status& why);
  // The call is over: the sink is not used any more.
  void Detach();

  void OnProgress(const GenerationResult& so_far) override;
  void OnPromptLogprobs(v1::Logprobs logprobs) override;
  void OnToken(GeneratedToken token) override;
  void OnChoiceEnd(std::uint32_t choice, v1::FinishReason reason) override;
  void OnFinished(const GenerationResult& result) override;
  void OnError(absl::Status status) override;

 private:
  bool stopping() const;
  void CancelGeneration();
  // INTERNAL for what a generator must not send.
  absl::Status CheckToken(const GeneratedToken& token) const;
  std::size_t open_choices() const;
  // All that is still open has met its stop string, and the client can have all of it.
  bool all_stopped() const;
  // False, and the request is on its way to its end, when the client has left too much unread.
  bool Send(v1::Choice increment);
  bool SendEcho(std::uint32_t choice);
  void EndWell(v1::FinishReason reason);
  void EndBadly(const absl::Status& status, bool cut);
  void Close(const absl::Status& status, bool cut);
  v1::CompleteChunk NewChunk() const;
  v1::Timeline MakeTimeline() const;
  void Log(const absl::Status& status, const v1::Timeline& timeline) const;
  void EndSpan(const absl::Status& status, const v1::Timeline& timeline);

  const std::string id_;
  const Options options_;
  TimerThread& timer_;
  std::shared_ptr<RunningRequests>
      running_;        // shared: a generation may let go of this after the service has gone
  GenerationJob job_;  // handed on by Start
  const std::uint32_t prompt_tokens_;
  const std::uint32_t vocabulary_;
  const bool wants_logprobs_;

  // Used by the generation's calls only.
  std::vector<ChoiceStream> choices_;
  std::vector<v1::Choice> echo_;  // in front of every choice
  bool echo_complete_ = true;     // has its log probabilities, if it is to have them
  bool chunk_lost_ = false;       // the client cannot have all of it any more
  GenerationResult result_;
  std::uint32_t completion_tokens_ = 0;
  TimePoint first_token_;
  TimePoint last_token_;
  OpenSpan span_;

  mutable absl::Mutex mutex_;
  CompletionSink* sink_ ABSL_GUARDED_BY(mutex_);  // null once detached
  std::shared_ptr<Generation> generation_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> stop_cause_ ABSL_GUARDED_BY(mutex_);
  bool cancel_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  TimerThread::Key deadline_key_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
